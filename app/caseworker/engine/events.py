"""The events of a run. They are numbered and dated where they are stored."""

from collections.abc import Mapping, Sequence
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
CALL_STARTED: Final = "call.started"
"""A call was let through. One that is refused emits nothing; one that was cut off with its worker
begins again, as another node."""
CALL_COMPLETED: Final = "call.completed"
CALL_ERROR: Final = "call.error"
CALL_CANCELLED: Final = "call.cancelled"
TURN_START: Final = "turn_start"
THINKING: Final = "thinking"
"""A part of what a model shows of its reasoning; ``offset`` is where it begins, in characters."""
CONTENT_CHUNK: Final = "content_chunk"
"""A part of an answer; one that begins before the end of what came so far replaces all behind."""
TOOL_CALL_START: Final = "tool_call_start"
TOOL_CALL_END: Final = "tool_call_end"
USAGE: Final = "usage"
"""What the model call of a turn has used."""
TURN_END: Final = "turn_end"
AGENT_ERROR: Final = "error"
CONVERSATION_TRIMMED: Final = "conversation.trimmed"
CONVERSATION_SUMMARISED: Final = "conversation.summarised"
ROUTED: Final = "router.routed"
"""A router has chosen: ``handles`` are those on which its value leaves."""
RUN_STARTED: Final = "run.started"
RUN_RESUMED: Final = "run.resumed"
"""A worker goes on with a run that another one had begun."""
APPROVAL_REQUESTED: Final = "approval.requested"
"""A person is asked; what became of it is told by one of the three others."""
BUDGET_WARNING: Final = "budget.warning"
LATE_RESULT: Final = "late_result"
"""Abandoned work came to an end after all; its result was dropped."""

VERDICTS: Final = ("approved", "refused", "timed_out")
"""What may become of a question."""

STREAMED: Final = frozenset({THINKING, CONTENT_CHUNK})
"""The parts of answers, which are shown while they are written."""

LIFECYCLE: Final = frozenset(
    {STEP_STARTED, STEP_RESUMED, STEP_COMPLETED, STEP_ERROR, STEP_CANCELLED, STEP_SKIPPED}
)
"""The events that the engine alone emits: one start and one end for each executed step."""

CALLS: Final = frozenset({CALL_STARTED, CALL_COMPLETED, CALL_ERROR, CALL_CANCELLED})
"""The begin and the end of each call that was made; the gateway alone emits them."""

APPROVALS: Final = frozenset({APPROVAL_REQUESTED, *map("approval.{}".format, VERDICTS)})

RESERVED: Final = LIFECYCLE | CALLS | APPROVALS | {RUN_STARTED, RUN_RESUMED}
"""What no node may emit."""


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
    once: str | None = None
    """A key inside the run, such as ``step|turn_start|3``: if an earlier execution of the run has
    stored an event with this key, this one is dropped."""
    answer_of: str | None = None
    """The key of the call with which the texts are journaled that the step's parts of an answer
    before this event make up: they need not be stored with those as well."""


def call_ended(
    why: Sequence[str], attempts: int, tokens_in: int, tokens_out: int
) -> tuple[str, dict[str, Any]]:
    """Return type and data of the end of a call.

    ``why`` is empty after a success, the class and the message of a failure, or the reason of a
    stop that cut it off.
    """
    data = {"attempts": attempts, "tokens_in": tokens_in, "tokens_out": tokens_out}
    match why:
        case (error_class, message):
            return CALL_ERROR, {**data, "error_class": error_class, "error": message}
        case (reason,):
            return CALL_CANCELLED, {**data, "reason": reason}
        case _:
            return CALL_COMPLETED, data


class EventSink(Protocol):
    """Takes the events of one run, in order."""

    def emit(self, event: Event) -> None:
        """Take an event; it is stored with the next write of the run's journal."""
        ...
