"""What owners write, as the JSON rows that statements take: made once, and counted in bytes.

A row is written as text when its write is handed in, and not when its batch is under way: so the
size of a write is known before it is decided over which connection it goes, and a batch that is
repeated joins texts that exist already. A large write is turned into text piece by piece, with the
event loop in between.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from caseworker.adapters.postgres.json_text import dump
from caseworker.adapters.postgres.rows import call_to_json, event_to_json, finish_to_json
from caseworker.runs.ports import JournalWrite
from caseworker.runs.run import FinishRun, RunKey

Ownership = tuple[RunKey, int]
"""A run and the fence under which somebody owns it."""

BREATH_BYTES = 256 * 1024
"""How much is turned into text before the event loop gets a turn."""


@dataclass(frozen=True, slots=True, eq=False)
class OwnersWrite:
    """A write of a run's owner, with its rows as JSON."""

    what: JournalWrite | FinishRun
    calls: Mapping[tuple[Ownership, str], str]
    """By owner and node."""
    events: Mapping[tuple[Ownership, int], str]
    """By owner and number."""
    end: str | None
    """How the run ends, if it does."""
    size_bytes: int
    """Of all texts together; they are ASCII."""

    @property
    def owner(self) -> Ownership:
        """Who writes."""
        return self.what.key, self.what.fence


async def as_rows(write: JournalWrite | FinishRun) -> OwnersWrite:
    """Return a write with its rows as JSON.

    Raises:
        ValueError: there is a number in it that is no JSON.
        TypeError: something in it is no JSON.
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
    """Return the calls to write; of one that is written twice, the later state."""
    last = {place: text for write in writes for place, text in write.calls.items()}
    return _array(last.values())


def events_of(writes: Iterable[OwnersWrite]) -> str:
    """Return the events to write; one that two writes of an owner carry is the same in both."""
    once = {place: text for write in writes for place, text in write.events.items()}
    return _array(once.values())


def ends_of(writes: Iterable[OwnersWrite]) -> str:
    """Return how runs end."""
    return _array(write.end for write in writes if write.end is not None)


def _array(texts: Iterable[str]) -> str:
    return f"[{','.join(texts)}]"


class _Pace:
    """Counts text, and lets others work after each piece of it."""

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
