"""Buffers the events of one run until they are stored.

An event gets its final sequence number and time when it is emitted. Sequence numbers run from 1 to
n without gaps, across all executions of a run. Every write contains all events that are not
confirmed as stored, including those of a write still in flight. So whichever write succeeds or
fails, the store never holds an event without its predecessors. Stored events do not change, with
one exception: when an answer is journaled, its streamed parts are rewritten, with the key of the
call instead of the text. Events that a worker lost before storing them do not count: the next owner
continues from the last stored sequence number.
"""

import re
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from caseworker.core.trace.frozen_json import USUAL_LIMITS, ValueLimits, ValueTooLargeError, freeze
from caseworker.engine.events import BUDGET_WARNING, CALLS, LATE_RESULT, RESERVED, STREAMED, Event
from caseworker.nodes.agent.references import part_in
from caseworker.runs.run import EventRecord, RunStatus

_OURS: Final = RESERVED | {BUDGET_WARNING, LATE_RESULT}
_TYPE: Final = re.compile(r"(?!run\.|call\.)[A-Za-z0-9][A-Za-z0-9_.:-]{0,99}", re.ASCII)


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
    """The events of one execution that are not yet confirmed as stored."""

    def __init__(
        self,
        *,
        last_seq: int,
        stored_once: Set[str] = frozenset(),
        streamed: MutableMapping[tuple[str | None, str], Any] | None = None,
        limits: ValueLimits = USUAL_LIMITS,
        now: Callable[[], float] = time.time,
    ) -> None:
        """Continue after the last stored event, which has the sequence number ``last_seq``.

        ``stored_once`` holds the deduplication keys of events that must not be stored again.
        ``streamed`` maps step ID and event type to answers of which earlier owners stored only a
        part. When such an answer ends or restarts, its entry is removed. ``now`` returns Unix time.
        """
        self._last_seq = last_seq
        self._stored_once = stored_once
        self._streamed = {} if streamed is None else streamed
        self._limits = limits
        self.size_bytes = 0
        """Total data size, in bytes, of all events so far."""
        self._now = now
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
    def streams(self) -> bool:
        """Whether the last event is a part of an answer that was not yet sent to the store."""
        return bool(self._fresh) and self._fresh[-1].event.type in STREAMED

    def add(self, event: Event) -> None:
        """Append an event to the buffer.

        Raises:
            ValueTooLargeError: its data exceeds a limit.
            ValueError: its data is not JSON, or its type is reserved or malformed.
        """
        if event.type not in _OURS and not _TYPE.fullmatch(event.type):
            raise ValueError(
                "An event's type is a dotted word, and run.* and call.* are not for nodes."
            )
        if event.once is not None and event.once in self._stored_once:
            return
        # Events of the gateway are known to be JSON and immutable, so they need no copy.
        own = not event.data or event.type in CALLS
        data = event.data if own else self._frozen(event)
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

    def _shorten(self, step_id: str | None, call_key: str) -> None:
        """Replace streamed texts of a step's answer with a reference to the journaled call."""
        for kind in STREAMED:
            self._streamed.pop((step_id, kind), None)
            for part in self._parts.pop((step_id, kind), ()):
                part.data = part_in(call_key, part.data)
                record = part.record
                if record is None:
                    continue
                shorter = replace(record, data=part.data)
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
            each.record = _record(self._last_seq, each.event, each.data, each.at)
            self._numbered.append(each.record)
        self._fresh.clear()
        return (*self._shortened, *self._numbered)

    def confirm(self, stored: Sequence[EventRecord]) -> None:
        """Drop events that are stored now, except parts of answers that have changed since."""
        if self._shortened:
            known = set(map(id, stored))
            self._shortened = [each for each in self._shortened if id(each) not in known]
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
        return (*pending, _record(self._last_seq + 1, event, event.data, self._now()))


@dataclass(slots=True)
class _Fresh:
    """A new event and, once it is numbered, its record."""

    event: Event
    data: Mapping[str, Any]
    at: float
    record: EventRecord | None = None


def _record(seq: int, event: Event, data: Mapping[str, Any], at: float) -> EventRecord:
    return EventRecord(
        seq=seq,
        ts=datetime.fromtimestamp(at, UTC),
        type=event.type,
        step_id=event.step_id,
        node_id=event.node_id,
        data=data,
        once_key=event.once,
    )
