"""Pairs of events: each start of a step, a turn, a tool call or a call has one end.

The code that emits a start usually emits the end too, but a lost process does not. The next owner
of the run reads the starts without an end. It ends lost calls at once, because a call is repeated
as a new node. Steps, turns and tool calls continue. If they do not, they end with the step around
them, at the latest with the run.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from caseworker.core.trace.node import TraceNode
from caseworker.engine.events import (
    CALL_CANCELLED,
    CALL_COMPLETED,
    CALL_ERROR,
    CALL_STARTED,
    STEP_CANCELLED,
    STEP_COMPLETED,
    STEP_ERROR,
    STEP_RESUMED,
    STEP_STARTED,
    TOOL_CALL_END,
    TOOL_CALL_START,
    TURN_END,
    TURN_START,
    Event,
)
from caseworker.engine.step_path import StepPath
from caseworker.nodes.agent.references import marked
from caseworker.nodes.agent.rounds import CUT_OFF
from caseworker.nodes.templates import compact
from caseworker.tools.ports import failure

_STEP, _TURN, _TOOL_CALL, _CALL = "step", "turn", "tool call", "call"

STARTS: Final = {
    STEP_STARTED: _STEP,
    STEP_RESUMED: _STEP,
    TURN_START: _TURN,
    TOOL_CALL_START: _TOOL_CALL,
    CALL_STARTED: _CALL,
}
ENDS: Final = {
    STEP_COMPLETED: _STEP,
    STEP_ERROR: _STEP,
    STEP_CANCELLED: _STEP,
    TURN_END: _TURN,
    TOOL_CALL_END: _TOOL_CALL,
    CALL_COMPLETED: _CALL,
    CALL_ERROR: _CALL,
    CALL_CANCELLED: _CALL,
}

_Pair = tuple[str, str | None, str | None]
"""The kind of a start and its end, and the identifiers that both have."""


class OpenStarts:
    """The start events of a run that have no end event yet, in the order of their starts."""

    def __init__(self, stored: Iterable[Event] = ()) -> None:
        """``stored`` are the start events without an end that earlier executions stored."""
        self._starts: dict[_Pair, Event] = {}
        for event in stored:
            self.add(event)

    def add(self, event: Event) -> bool:
        """Record a start or an end; return False for an end whose start is not open."""
        kind = STARTS.get(event.type) or ENDS.get(event.type)
        pair = None if kind is None else _pair_of(kind, event)
        if pair is None:
            return True
        if event.type in STARTS:
            self._starts[pair] = event
            return True
        return self._starts.pop(pair, None) is not None

    def all(self) -> Sequence[Event]:
        """Return all open starts, the innermost first."""
        return [*self._starts.values()][::-1]

    def calls(self) -> Sequence[Event]:
        """Return the starts of open calls."""
        return [event for event in self.all() if event.type == CALL_STARTED]

    def inside(self, step_id: str) -> Sequence[Event]:
        """Return the open starts inside a step, the innermost first."""
        area = StepPath(step_id).inside()
        return [
            event
            for event in self.all()
            if StepPath(event.step_id or "") in area
            or (event.step_id == step_id and STARTS[event.type] != _STEP)
        ]


def is_step_end(event: Event) -> bool:
    """Return whether an event ends a step."""
    return ENDS.get(event.type) == _STEP


def interrupted(start: Event, reason: str, node: TraceNode | None = None) -> Event:
    """Return the end event for ``start``, whose work was interrupted.

    ``node`` is the closed CallNode of a call; its attempts and tokens are part of the event.
    """
    data = start.data
    if start.type == TURN_START:
        return _end_of(start, TURN_END, {"turn_number": data["turn_number"]})
    if start.type == TOOL_CALL_START:
        called = data["tool_call"]
        about = {
            "turn_number": data["turn_number"],
            "tool_call_id": called["id"],
            "name": called["name"],
            "error": marked(reason),
            "result": marked(compact(failure(reason, CUT_OFF))),
        }
        return _end_of(start, TOOL_CALL_END, about)
    if start.type == CALL_STARTED:
        counts: dict[str, Any] = {}
        if node is not None:
            counts = {
                "attempts": node["retries_used"] + 1,
                "tokens_in": node["tokens_in"],
                "tokens_out": node["tokens_out"],
            }
        return _end_of(start, CALL_CANCELLED, {**data, **counts, "reason": reason})
    once_key = f"{start.step_id}|{STEP_CANCELLED}"
    return _end_of(start, STEP_CANCELLED, {"reason": reason}, once_key)


def _end_of(start: Event, kind: str, data: Mapping[str, Any], once_key: str | None = None) -> Event:
    if start.once_key is not None:
        once_key = f"{start.step_id}|{kind}{_place_of(start)}"
    return Event(
        type=kind, step_id=start.step_id, node_id=start.node_id, data=data, once_key=once_key
    )


def _pair_of(kind: str, event: Event) -> _Pair | None:
    """Return a key that a start and its end share; None for an event of a custom node."""
    if kind == _STEP:
        return kind, event.step_id, None
    if kind == _CALL:
        return kind, event.node_id, None
    return None if event.once_key is None else (kind, event.step_id, _place_of(event))


def _place_of(event: Event) -> str:
    """Return the part of a deduplication key that follows the step and the type of the event."""
    return (event.once_key or "").removeprefix(f"{event.step_id}|{event.type}")
