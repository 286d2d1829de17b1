"""The facts that the scheduler takes, the orders that it gives, and the life of a step."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final


@dataclass(slots=True)
class StepFinished:
    """A step ended well and produced values on some of its output handles.

    Not frozen: that would triple the price of making one.
    """

    step_id: str
    handles: AbstractSet[str]
    """The keys of a dict will do."""


@dataclass(frozen=True, slots=True)
class StepFailed:
    """A step ended badly or was cut off, and with it the graph: nothing further is ordered."""

    step_id: str


Fact = StepFinished | StepFailed


@dataclass(frozen=True, slots=True)
class StartStep:
    """Execute this step; all its flow inputs are decided and at least one of them is live."""

    step_id: str


@dataclass(frozen=True, slots=True)
class SkipStep:
    """Report this step as skipped: every path that leads to it is dead."""

    step_id: str


Order = StartStep | SkipStep


class StepStatus(StrEnum):
    """How a step stands."""

    NOT_STARTED = "not_started"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    HALTED = "halted"
    """It was cut off, or refused, by a limit."""
    CANCELLED = "cancelled"
    """It was cut off by another stop, or because a step beside it failed."""
    SKIPPED = "skipped"
    """Every path to it was dead; it never started."""


RUNNING: Final = StepStatus.RUNNING
COMPLETED: Final = StepStatus.COMPLETED
FAILED: Final = StepStatus.FAILED
"""Bound once for those who ask at every step: a look-up in an enum is as dear as a call."""

NEXT: Mapping[StepStatus, frozenset[StepStatus]] = MappingProxyType(
    {
        StepStatus.NOT_STARTED: frozenset(
            {
                StepStatus.RUNNING,
                StepStatus.COMPLETED,
                StepStatus.FAILED,
                StepStatus.SKIPPED,
                StepStatus.HALTED,
                StepStatus.CANCELLED,
            }
        ),
        StepStatus.RUNNING: frozenset(
            {StepStatus.COMPLETED, StepStatus.FAILED, StepStatus.HALTED, StepStatus.CANCELLED}
        ),
        StepStatus.COMPLETED: frozenset(),
        StepStatus.FAILED: frozenset(),
        StepStatus.HALTED: frozenset(),
        StepStatus.CANCELLED: frozenset(),
        StepStatus.SKIPPED: frozenset(),
    }
)
"""What a status may change into. A step goes from not started to completed when an earlier attempt
of its run finished it, to halted when a limit refuses its start, and to failed when the start
itself breaks."""
