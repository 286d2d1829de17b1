"""Runs that are accepted in batches: many new ones by one statement.

What a batch passes over has met something, and is accepted by itself.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import psycopg
from psycopg.errors import LockNotAvailable, UniqueViolation

from caseworker.adapters.postgres.accept_statements import ACCEPT_NEW, ACCEPT_QUEUED, ASK_FOR_ROOM
from caseworker.adapters.postgres.connections import rows_of
from caseworker.adapters.postgres.group_commit import Later
from caseworker.adapters.postgres.json_text import dump
from caseworker.adapters.postgres.rows import Row, key_from_row, new_run_to_json
from caseworker.runs.errors import QueueFullError
from caseworker.runs.quotas import few_of_queue
from caseworker.runs.run import NewRun, RunKey

UNLIMITED = 2**62
"""More runs than can be queued."""

InsertAnswer = datetime | QueueFullError | None


@dataclass(slots=True)
class RunInsert:
    """A run to insert, claimed for a worker or queued for any; a queued one may begin at once."""

    new: NewRun
    worker_id: str | None
    max_queued: int = UNLIMITED
    """How many runs may be queued, this one included."""
    max_stored_bytes: int | None = None
    """What its tenant may store, this one included; see :data:`_HAS_NO_LIMIT`."""
    row: str = field(init=False)
    """As JSON."""
    maybe_stored: bool = False
    """True once the database went away in the middle: the row that is there may be this one."""

    def __post_init__(self) -> None:
        """Write the row."""
        row = new_run_to_json(self.new, self.worker_id)
        self.row = dump({**row, "max_stored_bytes": self.max_stored_bytes})


class QueueRoom:
    """Knows how many runs this process may queue before it counts again those that are queued.

    Counting takes the longer the more there are. So each count lets a small part of the places that
    are free be taken without another: near the limit every batch counts, and processes that have
    counted at the same time cannot take many more places together than there are.
    """

    PART: Final = 64
    SECONDS: Final = 1.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left = 0
        self._until = 0.0

    def take(self, runs: int) -> bool:
        """Take places for runs; False if the queue must be counted first."""
        if runs > self._left or self._clock() >= self._until:
            return False
        self._left -= runs
        return True

    def counted(self, free: int) -> None:
        """Take notice of how many places are free."""
        self._left = free // self.PART
        self._until = self._clock() + self.SECONDS


async def accept_in_batch(
    connection: psycopg.AsyncConnection[Any], inserts: Sequence[RunInsert], *, room: QueueRoom
) -> Sequence[InsertAnswer | Later]:
    """Insert runs: those that are claimed with one statement, then those that are queued.

    Each statement is a transaction of its own; a run is queued with its job or not at all. Return
    for each run when it was created, that the queue is full, that it must come again, or None if it
    met something else and must be accepted by itself.
    """
    first: dict[RunKey, RunInsert] = {}
    for insert in inserts:
        first.setdefault(insert.new.key, insert)
    ordered = [first[key] for key in sorted(first)]
    claimed = [insert for insert in ordered if insert.worker_id is not None]
    queued = [insert for insert in ordered if insert.worker_id is None]
    answers: dict[RunKey, InsertAnswer | Later] = {}
    try:
        if claimed:
            answers |= _created(await rows_of(connection, ACCEPT_NEW, _document(claimed)))
        if queued:
            answers |= await _queue(connection, queued, room)
    except (LockNotAvailable, UniqueViolation):
        if len(inserts) == 1:
            return [None]  # somebody is just making the row, or it has a job already
        for insert in claimed:
            insert.maybe_stored = True
        raise
    except Exception:
        for insert in inserts:
            insert.maybe_stored = True
        raise
    return [
        answers.get(insert.new.key) if first[insert.new.key] is insert else None
        for insert in inserts
    ]


async def _queue(
    connection: psycopg.AsyncConnection[Any], queued: Sequence[RunInsert], room: QueueRoom
) -> Mapping[RunKey, InsertAnswer | Later]:
    """Insert as many of some runs as may be queued; find those for which there is no room.

    A crowd that comes to a full queue is so refused at once, and not run by run. If the queue has
    got room meanwhile, it is asked for again in a batch: run by run, those that are accepted at the
    same time would not count one another.
    """
    most = queued[0].max_queued
    counts = most < UNLIMITED and not room.take(len(queued))
    rows = await rows_of(connection, ACCEPT_QUEUED, most if counts else 0, _document(queued), most)
    if rows and counts:
        room.counted(most - rows[0]["waiting"] - len(rows))
    answers = _created(rows)
    left = [insert for insert in queued if insert.new.key not in answers]
    if left and most < UNLIMITED:
        few, document = few_of_queue(most), _document(left)
        new = await rows_of(connection, ASK_FOR_ROOM, runs=document, most=most, few=few)
        answers |= {key_from_row(row): _without_room(row) for row in new}
    return answers


def _without_room(row: Row) -> QueueFullError | Later:
    return QueueFullError() if row["is_full"] else Later.LATER


def _created(rows: Iterable[Row]) -> dict[RunKey, InsertAnswer | Later]:
    return {key_from_row(row): row["created_at"] for row in rows}


def _document(inserts: Sequence[RunInsert]) -> str:
    return f"[{','.join(insert.row for insert in inserts)}]"
