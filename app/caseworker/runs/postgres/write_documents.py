"""Converts journal writes to JSON rows, each only once, and determines their size.

A row is serialized when its write is submitted, not when its batch is sent. The size of a write is
therefore known when its connection is chosen, and a repeated batch only joins existing texts. A
large write is serialized piece by piece and yields to the event loop in between.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from caseworker.platform.postgres.json_text import dump
from caseworker.runs.ports import JournalWrite
from caseworker.runs.postgres.rows import call_to_json, event_to_json, finish_to_json
from caseworker.runs.run import FinishRun, RunKey

Ownership = tuple[RunKey, int]
"""A run's key, and the fencing token of its owner."""

BREATH_BYTES = 256 * 1024
"""Number of bytes to serialize before yielding to the event loop."""


@dataclass(frozen=True, slots=True, eq=False)
class OwnersWrite:
    """A journal write by the owner of a run, with its rows as JSON texts."""

    what: JournalWrite | FinishRun
    calls: Mapping[tuple[Ownership, str], str]
    """Journal rows to write, as JSON texts, by owner and CallNode ID."""
    events: Mapping[tuple[Ownership, int], str]
    """Event rows to write, as JSON texts, by owner and sequence number."""
    end: str | None
    """Row that ends the run; None if the write does not end it."""
    size_bytes: int
    """Total size of all rows in bytes; the texts are ASCII."""

    @property
    def owner(self) -> Ownership:
        """The run that is written, and the fencing token of the writer."""
        return self.what.key, self.what.fence


async def as_rows(write: JournalWrite | FinishRun) -> OwnersWrite:
    """Return a write with its rows as JSON texts.

    Raises:
        ValueError: the write contains a number that is not valid JSON.
        TypeError: the write contains a value that is not JSON.
    """
    owner = write.key, write.fence
    pace = _Pace()
    calls: dict[tuple[Ownership, str], str] = {}
    for record in write.calls:
        calls[owner, record.node_id] = pace.counted(dump(call_to_json(*owner, record)))
        if pace.is_due:
            await pace.breathe()
    events: dict[tuple[Ownership, int], str] = {}
    for event in write.events:
        events[owner, event.seq] = pace.counted(dump(event_to_json(*owner, event)))
        if pace.is_due:
            await pace.breathe()
    end = None
    if isinstance(write, FinishRun):
        end = pace.counted(dump(finish_to_json(write, pace.size_bytes)))
    return OwnersWrite(write, calls, events, end, pace.size_bytes)


def calls_of(writes: Iterable[OwnersWrite]) -> str:
    """Return the calls of several writes as a JSON array.

    If the same call was written twice, the array only contains its later state.
    """
    last = {place: text for write in writes for place, text in write.calls.items()}
    return _array(last.values())


def events_of(writes: Iterable[OwnersWrite]) -> str:
    """Return the events of several writes as a JSON array, each event only once."""
    once = {place: text for write in writes for place, text in write.events.items()}
    return _array(once.values())


def ends_of(writes: Iterable[OwnersWrite]) -> str:
    """Return the rows that end runs, from several writes, as a JSON array."""
    return _array(write.end for write in writes if write.end is not None)


def _array(texts: Iterable[str]) -> str:
    return f"[{','.join(texts)}]"


class _Pace:
    """Counts serialized bytes, and yields to the event loop after each piece."""

    def __init__(self) -> None:
        self.size_bytes = 0
        self._next_breath = BREATH_BYTES

    def counted(self, text: str) -> str:
        self.size_bytes += len(text)
        return text

    @property
    def is_due(self) -> bool:
        return self.size_bytes >= self._next_breath

    async def breathe(self) -> None:
        self._next_breath = self.size_bytes + BREATH_BYTES
        await asyncio.sleep(0)
