"""What the scheduler is told and what it orders."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass


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
