"""The events of a run during its execution: numbered, paired and not yet stored.

Each start of a step, a turn, a tool call or a call has one end.

The code that emits a start usually emits the end too, but a lost process does not. The next owner
of the run reads the starts without an end. It ends lost calls at once, because a call is repeated
as a new node. Steps, turns and tool calls continue. If they do not, they end with the step around
them, at the latest with the run.
"""

import re
import time
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from caseworker.core.trace.frozen_json import (
    DEFAULT_VALUE_LIMITS,
    ValueLimits,
    ValueTooLargeError,
    freeze,
)
from caseworker.core.trace.node import TraceNode
from caseworker.engine.events import (
    BUDGET_WARNING,
    CALL_CANCELLED,
    CALL_COMPLETED,
    CALL_ERROR,
    CALL_STARTED,
    CALLS,
    LATE_RESULT,
    RESERVED,
    STEP_CANCELLED,
    STEP_COMPLETED,
    STEP_ERROR,
    STEP_RESUMED,
    STEP_STARTED,
    STREAMED,
    TOOL_CALL_END,
    TOOL_CALL_START,
    TURN_END,
    TURN_START,
    Event,
)
from caseworker.engine.step_path import StepPath
from caseworker.nodes.agent.references import marked, part_in
from caseworker.nodes.agent.rounds import CUT_OFF
from caseworker.nodes.templates import compact
from caseworker.runs.run import EventRecord, RunStatus
from caseworker.tools.ports import failure

STEP_ENDED = "The step has ended."
"""Reason for end events inside a step that has completed."""

_OURS: Final = RESERVED | {BUDGET_WARNING, LATE_RESULT}
_TYPE: Final = re.compile(r"(?!run\.|call\.)[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}", re.ASCII)

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
        pair: _Pair
        if kind == _STEP:
            pair = kind, event.step_id, None
        elif kind == _CALL:
            pair = kind, event.node_id, None
        elif kind is None or event.once_key is None:  # an event of a custom node
            return True
        else:
            pair = kind, event.step_id, _place_of(event)
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

    def inside(self, step_id: str | None) -> Sequence[Event]:
        """Return the open starts inside a step, the innermost first."""
        inside: list[Event] = []
        for event in reversed(self._starts.values()):
            if event.step_id == step_id:
                if STARTS[event.type] != _STEP:
                    inside.append(event)
            elif StepPath(event.step_id or "") in StepPath(str(step_id)).inside():
                inside.append(event)
        return inside


def _interrupted(start: Event, reason: str, node: TraceNode | None = None) -> Event:
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


def _place_of(event: Event) -> str:
    """Return the part of a deduplication key that follows the step and the type of the event."""
    return (event.once_key or "").removeprefix(f"{event.step_id}|{event.type}")


def run_ended(
    status: RunStatus, finish_reason: str | None, stop: Mapping[str, Any] | None
) -> Event:
    """Return the event that reports the end of a run."""
    return Event(type=f"run.{status.value}", data={"finish_reason": finish_reason, "stop": stop})


def late_result(usage: Mapping[str, Any], last_seq: int) -> tuple[EventRecord, ...]:
    """Return the event that reports that the cost of a run changed after its end."""
    event = Event(type=LATE_RESULT, data={"usage": dict(usage)})
    return EventLog(last_seq=last_seq).followed_by(event)


class EventLog:
    """The events of one execution that are not yet confirmed as stored.

    An event gets its final sequence number and time when it is emitted. Sequence numbers run from 1
    to n without gaps, across all executions of a run. Every write contains all events that are not
    confirmed as stored, including those of a write still in flight. So whichever write succeeds or
    fails, the store never holds an event without its predecessors. Stored events do not change,
    with one exception: when an answer is journaled, its streamed parts are rewritten, with the key
    of the call instead of the text. Events that a worker lost before storing them do not count: the
    next owner continues from the last stored sequence number.
    """

    def __init__(
        self,
        *,
        last_seq: int,
        stored_once: Set[str] = frozenset(),
        streamed: MutableMapping[tuple[str | None, str], Any] | None = None,
        open_starts: OpenStarts | None = None,
        limits: ValueLimits = DEFAULT_VALUE_LIMITS,
        now: Callable[[], float] = time.time,
        node_of: Callable[[str], TraceNode] | None = None,
    ) -> None:
        """Continue after the last stored event, which has the sequence number ``last_seq``.

        ``stored_once`` holds the deduplication keys of events that must not be stored again.
        ``streamed`` maps step ID and event type to answers of which earlier owners stored only a
        part. When such an answer ends or restarts, its entry is removed. ``open_starts`` are the
        stored starts without an end. ``now`` returns Unix time. ``node_of`` returns the CallNode
        with an ID, or raises KeyError.
        """
        self.open_starts = open_starts or OpenStarts()
        """The starts that have no end yet."""
        self._last_seq = last_seq
        self._stored_once = stored_once
        self._streamed = {} if streamed is None else streamed
        self._limits = limits
        self.size_bytes = 0
        """Total data size, in bytes, of all events so far."""
        self._now = now
        self.node_of = node_of
        self._fresh: list[_Fresh] = []
        self._numbered: list[EventRecord] = []
        self._parts: dict[tuple[str | None, str], list[_Fresh]] = {}
        """Parts of answers that are not journaled yet, by step and type, from offset 0."""
        self._shortened: list[EventRecord] = []
        """Stored parts to rewrite because their texts are journaled now."""

    def __bool__(self) -> bool:
        """Return whether there are events that may not be stored yet."""
        return bool(self._fresh or self._numbered or self._shortened)

    @property
    def stored_seq(self) -> int:
        """Sequence number of the last event that is confirmed as stored."""
        return self._last_seq - len(self._numbered)

    @property
    def streams(self) -> bool:
        """Whether the last event is part of a streamed answer and not yet sent to the store."""
        return bool(self._fresh) and self._fresh[-1].event.type in STREAMED

    def add(self, event: Event) -> None:
        """Append an event to the buffer, unless it is stored or ends nothing that is open.

        The end of a step is preceded by the ends of everything that is open inside it.

        Raises:
            ValueTooLargeError: the data exceeds a limit.
            ValueError: the data is not JSON, or the event type is reserved or malformed.
        """
        is_end = ENDS.get(event.type) == _STEP
        if is_end and (inside := self.open_starts.inside(event.step_id)):
            reason = event.data.get("reason") or event.data.get("error") or STEP_ENDED
            self.end(inside, reason)
        if event.type not in _OURS and not _TYPE.fullmatch(event.type):
            raise ValueError(
                "An event's type is a dotted word, and run.* and call.* are not for nodes."
            )
        if event.once_key is not None and event.once_key in self._stored_once:
            return
        if not self.open_starts.add(event):
            return
        # Events of the gateway are known to be JSON and immutable, so they need no copy.
        is_small = not event.data or event.type in CALLS
        data = event.data if is_small else self._frozen(event)
        if event.answer_of is not None:
            self._shorten(event.step_id, event.answer_of)
        fresh = _Fresh(event, data, self._now())
        self._fresh.append(fresh)
        if event.type in STREAMED:
            parts = self._parts.setdefault((event.step_id, event.type), [])
            if not data.get("offset"):
                parts.clear()
                self._streamed.pop((event.step_id, event.type), None)
            parts.append(fresh)

    def end(self, starts: Sequence[Event], reason: str) -> None:
        """Append the missing end events of ``starts``."""
        for start in starts:
            node = None
            if self.node_of is not None:
                with suppress(KeyError):  # the journal of a lost process could not be read
                    node = self.node_of(str(start.node_id))
            self.add(_interrupted(start, reason, node))

    def _shorten(self, step_id: str | None, call_key: str) -> None:
        """Replace streamed texts of a step's answer with a reference to the journaled call."""
        for kind in STREAMED:
            self._streamed.pop((step_id, kind), None)
            for part in self._parts.pop((step_id, kind), ()):
                full_data, part.data = part.data, part_in(call_key, part.data)
                if part.data is full_data:
                    continue
                part.full_data, record = full_data, part.record
                if record is None:
                    continue
                shorter = replace(record, data=part.data, full_data=full_data)
                at = record.seq - self._numbered[0].seq if self._numbered else -1
                if at < 0:
                    self._shortened.append(shorter)
                else:
                    self._numbered[at] = shorter

    def _frozen(self, event: Event) -> Any:
        """Copy the data of an event in the form that the store returns."""
        limits = self._limits
        try:
            frozen = freeze(
                dict(event.data),
                max_bytes=limits.max_event_bytes,
                max_depth=limits.max_depth,
                key="limits.max_event_kb",
            )
        except ValueTooLargeError as error:
            raise ValueTooLargeError(f"The data of event {event.type} {error}.") from None
        self.size_bytes += frozen.size_bytes
        return frozen.value()

    def unconfirmed(self) -> tuple[EventRecord, ...]:
        """Return all events that may not be stored yet, in order, with their sequence numbers."""
        for each in self._fresh:
            self._last_seq += 1
            each.record = _event_record(
                self._last_seq, each.event, each.data, each.at, full_data=each.full_data
            )
            self._numbered.append(each.record)
        self._fresh.clear()
        return (*self._shortened, *self._numbered)

    def confirm(self, stored: Sequence[EventRecord]) -> None:
        """Drop events that are stored now, except parts of answers that have changed since."""
        if self._shortened:
            stored_ids = set(map(id, stored))
            self._shortened = [each for each in self._shortened if id(each) not in stored_ids]
        if stored and self._numbered:
            beyond = max(0, stored[-1].seq - self._numbered[0].seq + 1)
            ended = zip(self._numbered[:beyond], stored[-beyond:], strict=False)
            self._shortened += (ours for ours, theirs in ended if ours is not theirs)
            del self._numbered[:beyond]

    def followed_by(self, event: Event) -> tuple[EventRecord, ...]:
        """Return the unconfirmed events followed by ``event``, which is not added to the buffer.

        The event is not buffered, because the store may reject the end that it reports.
        """
        pending = self.unconfirmed()
        return (*pending, _event_record(self._last_seq + 1, event, event.data, self._now()))


@dataclass(slots=True)
class _Fresh:
    """A new event and, once it is numbered, its record."""

    event: Event
    data: Mapping[str, Any]
    at: float
    full_data: Mapping[str, Any] | None = None
    """The data with its text, if ``data`` refers to the call that stores the text."""
    record: EventRecord | None = None


def _event_record(
    seq: int,
    event: Event,
    data: Mapping[str, Any],
    at: float,
    *,
    full_data: Mapping[str, Any] | None = None,
) -> EventRecord:
    return EventRecord(
        seq=seq,
        ts=datetime.fromtimestamp(at, UTC),
        type=event.type,
        step_id=event.step_id,
        node_id=event.node_id,
        data=data,
        once_key=event.once_key,
        full_data=full_data,
    )
