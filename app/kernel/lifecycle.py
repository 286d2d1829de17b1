"""The life of a step inside one execution."""

from collections.abc import Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final


class StepStatus(StrEnum):
    """How a step stands."""

    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    """It was cut off by a stop."""
    SKIPPED = "skipped"
    """Every path to it was dead; it never started."""


RUNNING: Final = StepStatus.RUNNING
COMPLETED: Final = StepStatus.COMPLETED
FAILED: Final = StepStatus.FAILED
"""Bound once for those who ask at every step: a look-up in an enum is as dear as a call."""

NEXT: Mapping[StepStatus, frozenset[StepStatus]] = MappingProxyType(
    {
        StepStatus.PENDING: frozenset(
            {
                StepStatus.RUNNING,
                StepStatus.COMPLETED,
                StepStatus.FAILED,
                StepStatus.SKIPPED,
                StepStatus.CANCELLED,
            }
        ),
        StepStatus.RUNNING: frozenset(
            {StepStatus.COMPLETED, StepStatus.FAILED, StepStatus.CANCELLED}
        ),
        StepStatus.COMPLETED: frozenset(),
        StepStatus.FAILED: frozenset(),
        StepStatus.CANCELLED: frozenset(),
        StepStatus.SKIPPED: frozenset(),
    }
)
"""What a status may change into. A step goes from pending to completed when an earlier attempt of
its run finished it, to cancelled when a limit refuses its start, and to failed when the start
itself breaks."""
