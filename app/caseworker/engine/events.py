"""The events of a run. The store assigns their sequence numbers and timestamps.

See docs/internals.md, "The journal and its barrier".
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

STEP_STARTED: Final = "step.started"
STEP_RESUMED: Final = "step.resumed"
"""A step is executed again after its worker was lost; replaces a second ``step.started``."""
STEP_COMPLETED: Final = "step.completed"
STEP_ERROR: Final = "step.error"
STEP_CANCELLED: Final = "step.cancelled"
"""A step was interrupted by a stop, or because a parallel step failed."""
STEP_SKIPPED: Final = "step.skipped"
"""A step will not be started, because none of the paths that lead to it was taken."""
CALL_STARTED: Final = "call.started"
"""A call passed the gateway. A refused call emits nothing. A call that was interrupted by a worker
loss starts again as a new node."""
CALL_COMPLETED: Final = "call.completed"
CALL_ERROR: Final = "call.error"
CALL_CANCELLED: Final = "call.cancelled"
TURN_START: Final = "turn_start"
THINKING: Final = "thinking"
"""Part of a model's visible reasoning; ``offset`` is its start in the whole text, in characters."""
CONTENT_CHUNK: Final = "content_chunk"
"""Part of an answer. ``offset`` is its start in the text, in characters; the part replaces any
earlier text from there on."""
TOOL_CALL_START: Final = "tool_call_start"
TOOL_CALL_END: Final = "tool_call_end"
USAGE: Final = "usage"
"""Token usage and cost of the model call in a turn."""
TURN_END: Final = "turn_end"
AGENT_ERROR: Final = "error"
CONVERSATION_TRIMMED: Final = "conversation.trimmed"
CONVERSATION_SUMMARISED: Final = "conversation.summarised"
ROUTED: Final = "router.routed"
"""A router chose its outputs: ``handles`` lists the handles that pass the value on."""
RUN_STARTED: Final = "run.started"
RUN_RESUMED: Final = "run.resumed"
"""A worker resumed a run that another worker had started."""
REPLAY_DIVERGED: Final = "replay.diverged"
"""A later attempt of an external run sent a request that the record does not contain."""
APPROVAL_REQUESTED: Final = "approval.requested"
"""An approval is pending. ``approval.approved``, ``.refused`` or ``.timed_out`` follows."""
REQUIRED_ACTION: Final = "required_action"
"""The client of the run has to answer a call: ``GET /runs/{run_id}/calls`` shows it. The
``call.completed`` or ``call.error`` of its node follows."""
BUDGET_WARNING: Final = "budget.warning"
OUTPUT_LIMITED: Final = "budget.output_limited"
"""A reply was cut off at an output limit that the request did not have: the budget could not pay
more. ``setting`` names the limit of the run."""
LATE_RESULT: Final = "late_result"
"""Abandoned work has ended; its result was dropped."""

VERDICTS: Final = ("approved", "refused", "timed_out")
"""Outcomes of an approval; each has an event type ``approval.<outcome>``."""

STREAMED: Final = frozenset({THINKING, CONTENT_CHUNK})
"""Types of events that carry partial model output, emitted while the model generates it."""

LIFECYCLE: Final = frozenset(
    {STEP_STARTED, STEP_RESUMED, STEP_COMPLETED, STEP_ERROR, STEP_CANCELLED, STEP_SKIPPED}
)
"""Types of step events, which only the engine emits: one start and one end per executed step."""

CALLS: Final = frozenset({CALL_STARTED, CALL_COMPLETED, CALL_ERROR, CALL_CANCELLED})
"""Types of events for the start and the end of each call that was made; only the gateway emits
them."""

APPROVALS: Final = frozenset({APPROVAL_REQUESTED, *map("approval.{}".format, VERDICTS)})

RESERVED: Final = LIFECYCLE | CALLS | APPROVALS | {REQUIRED_ACTION, RUN_STARTED, RUN_RESUMED}
"""Types of events that a node must not emit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event of a run."""

    type: str
    step_id: str | None = None
    """Path of the step in the run; ``outer/inner`` for a step of a nested graph."""
    node_id: str | None = None
    """ID of the CallNode of the step or call."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """Details as JSON values that are safe to show."""
    once_key: str | None = None
    """Deduplication key within the run, such as ``step|turn_start|3``. The event is dropped if the
    run already has one with this key. None means no deduplication."""
    answer_of: str | None = None
    """Key of the journaled call that contains the text streamed by the step before this event. The
    streamed parts then need not store that text again."""


class EventSink(Protocol):
    """Receives the events of one run, in order."""

    def emit(self, event: Event) -> None:
        """Queue an event; it is stored with the next write of the run's journal."""
        ...
