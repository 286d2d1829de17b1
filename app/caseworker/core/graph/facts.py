"""The scheduler's input and output messages, and the statuses of a step.

Facts say what happened to a step. The scheduler consumes them and returns orders: steps to start
and steps to report as skipped.
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final


@dataclass(slots=True)
class StepFinished:
    """Fact: a step completed and produced values on some of its output handles.

    Not frozen, because a frozen dataclass takes three times as long to construct.
    """

    step_id: str
    handles: AbstractSet[str]
    """Names of the output handles that have a value; ``dict.keys()`` is accepted."""


@dataclass(frozen=True, slots=True)
class StepFailed:
    """Fact: a step failed or was interrupted, so the graph fails and no more steps are ordered."""

    step_id: str


Fact = StepFinished | StepFailed


@dataclass(frozen=True, slots=True)
class StartStep:
    """Order to execute a step: all paths to it are decided, and at least one was taken."""

    step_id: str


@dataclass(frozen=True, slots=True)
class SkipStep:
    """Order to report a step as skipped: none of the paths that lead to it was taken."""

    step_id: str


Order = StartStep | SkipStep


class StepStatus(StrEnum):
    """The status of a step in one execution of its graph."""

    NOT_STARTED = "not_started"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    HALTED = "halted"
    """A limit interrupted the step or prevented its start."""
    CANCELLED = "cancelled"
    """The step was interrupted by a stop other than a limit, or because a parallel step failed."""
    SKIPPED = "skipped"
    """The step never started, because none of the paths that lead to it was taken."""


RUNNING: Final = StepStatus.RUNNING
COMPLETED: Final = StepStatus.COMPLETED
FAILED: Final = StepStatus.FAILED
"""Constants for the statuses in hot code: an enum attribute look-up costs as much as a function
call."""

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
"""Allowed status transitions of a step, by current status; terminal statuses allow none.

A ``not_started`` step becomes ``completed`` if an earlier execution of its run completed it,
``halted`` if a limit prevents its start, and ``failed`` if starting it raises an error.
"""
