"""The facts that the scheduler consumes, the orders that it returns, and the statuses of a step."""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Final


@dataclass(slots=True)
class StepFinished:
    """A step completed and produced values on some of its output handles.

    Not frozen, because a frozen dataclass costs three times as much to construct.
    """

    step_id: str
    handles: AbstractSet[str]
    """The handles that got a value; ``dict.keys()`` is accepted."""


@dataclass(frozen=True, slots=True)
class StepFailed:
    """A step failed or was interrupted, so the graph fails: the scheduler orders no more steps."""

    step_id: str


Fact = StepFinished | StepFailed


@dataclass(frozen=True, slots=True)
class StartStep:
    """Execute this step: all its incoming flow edges are decided, and at least one is live."""

    step_id: str


@dataclass(frozen=True, slots=True)
class SkipStep:
    """Report this step as skipped: every path that leads to it is dead."""

    step_id: str


Order = StartStep | SkipStep


class StepStatus(StrEnum):
    """The status of a step."""

    NOT_STARTED = "not_started"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    HALTED = "halted"
    """A limit interrupted the step or refused its start."""
    CANCELLED = "cancelled"
    """Another stop, or the failure of a parallel step, interrupted it."""
    SKIPPED = "skipped"
    """Every path to the step was dead, so it never started."""


RUNNING: Final = StepStatus.RUNNING
COMPLETED: Final = StepStatus.COMPLETED
FAILED: Final = StepStatus.FAILED
"""Module constants for hot paths: an enum attribute look-up costs as much as a function call."""

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
"""The allowed transitions of a step's status; a terminal status has an empty set.

A step goes from ``not_started`` directly to ``completed`` if an earlier execution of its run
completed it, to ``halted`` if a limit refuses its start, and to ``failed`` if its start raises."""
