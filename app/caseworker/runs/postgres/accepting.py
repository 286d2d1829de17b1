"""Accepts runs in batches: one statement inserts many new runs.

A run that the batch leaves out because of a conflict is accepted separately.
"""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

import psycopg
from psycopg.errors import LockNotAvailable, UniqueViolation

from caseworker.platform.postgres.connections import rows_of
from caseworker.platform.postgres.group_commit import Later
from caseworker.platform.postgres.json_text import dump
from caseworker.runs.errors import QueueFullError
from caseworker.runs.postgres.accept_statements import ACCEPT_NEW, ACCEPT_QUEUED, ASK_FOR_ROOM
from caseworker.runs.postgres.rows import Row, key_from_row, new_run_to_json
from caseworker.runs.quotas import few_of_queue
from caseworker.runs.run import NewRun, RunKey

UNLIMITED = 2**62
"""Queue length that is never reached; means no limit."""

InsertAnswer = datetime | QueueFullError | None


@dataclass(slots=True)
class RunInsert:
    """A run to insert, claimed for a worker or queued for any worker."""

    new: NewRun
    worker_id: str | None
    max_queued: int = UNLIMITED
    """Maximum length of the queue in runs, including this run."""
    max_stored_bytes: int | None = None
    """Storage limit of the tenant in bytes; None means no limit."""
    row: str = field(init=False)
    """Row of the run as JSON."""
    maybe_stored: bool = False
    """Whether an earlier attempt failed while inserting. An existing row may then be its result."""

    def __post_init__(self) -> None:
        """Convert the run to its row."""
        row = new_run_to_json(self.new, self.worker_id)
        self.row = dump({**row, "max_stored_bytes": self.max_stored_bytes})


class QueueRoom:
    """Keeps track of how many runs this process may queue before it counts the queue again.

    Counting takes longer the more runs are queued. Each count therefore permits a small part of the
    free capacity to be used without another count. Near the limit every batch counts, and processes
    that counted at the same time cannot exceed the limit by much.
    """

    PART: Final = 64
    SECONDS: Final = 1.0

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left = 0
        self._until = 0.0

    def take(self, runs: int) -> bool:
        """Use capacity for some runs; return False if the queue must be counted first."""
        if runs > self._left or self._clock() >= self._until:
            return False
        self._left -= runs
        return True

    def counted(self, free: int) -> None:
        """Record how many runs the queue can still hold, after a count."""
        self._left = free // self.PART
        self._until = self._clock() + self.SECONDS


async def accept_in_batch(
    connection: psycopg.AsyncConnection[Any], inserts: Sequence[RunInsert], *, room: QueueRoom
) -> Sequence[InsertAnswer | Later]:
    """Insert runs: the claimed ones with one statement, then the queued ones with another.

    Each statement is its own transaction; a run is queued together with its job or not at all. For
    each run, the result is its creation time, QueueFullError, or Later if the insert must be
    retried. None means that the run has a conflict and must be accepted separately.
    """
    first: dict[RunKey, RunInsert] = {}
    for insert in inserts:
        # A second insert with the same ID is accepted separately: a repeat or a conflict.
        first.setdefault(insert.new.key, insert)
    # Sorted: concurrent batches with the same IDs must lock them in the same order.
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
            return [None]  # the row is being inserted, or has a job already
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
    """Insert as many runs as the queue has capacity for; find the runs that it rejects.

    A burst of runs at a full queue is thus rejected at once, not run by run. If the queue has
    capacity again, the runs are retried in a batch. Accepted one by one, concurrent runs would not
    count each other.
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
