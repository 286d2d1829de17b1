"""The events of a run. They are numbered and dated where they are stored."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

STEP_STARTED: Final = "step.started"
STEP_RESUMED: Final = "step.resumed"
"""Instead of a second start: an earlier try was cut off by the loss of its worker."""
STEP_COMPLETED: Final = "step.completed"
STEP_ERROR: Final = "step.error"
STEP_CANCELLED: Final = "step.cancelled"
"""A stop, or the failure of a sibling, cut it off."""
STEP_SKIPPED: Final = "step.skipped"
"""Every path to it was dead; it never started."""
BUDGET_WARNING: Final = "budget.warning"
LATE_RESULT: Final = "late_result"
"""Abandoned work came to an end after all; its result was dropped."""

LIFECYCLE: Final = frozenset(
    {STEP_STARTED, STEP_RESUMED, STEP_COMPLETED, STEP_ERROR, STEP_CANCELLED, STEP_SKIPPED}
)
"""The events that the engine alone emits: one start and one end for each executed step."""

STEP_ENDS: Final = frozenset({STEP_COMPLETED, STEP_ERROR, STEP_CANCELLED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened in a run."""

    type: str
    step_id: str | None = None
    """The path of the step inside the run; ``outer/inner`` for a step of a nested graph."""
    node_id: str | None = None
    """Its CallNode."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """JSON values, safe to show."""


class EventSink(Protocol):
    """Takes the events of one run, in order."""

    def emit(self, event: Event) -> None:
        """Take an event; it is stored with the next write of the run's journal."""
        ...
