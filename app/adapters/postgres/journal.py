"""The writes that every run makes, in batches that share a commit.

Writers of one batch know nothing of one another, and two of them may mean the same run: an owner
that has lost it and the owner that has it now, or two callers that chose the same id. Everything is
therefore matched by run and fence, and every writer gets an answer of its own.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeVar, cast

import psycopg
from psycopg.errors import LockNotAvailable
from psycopg.rows import dict_row

from app.adapters.postgres.connections import Connection, Patience
from app.adapters.postgres.group_commit import STOP_SECONDS, GroupCommit, Later
from app.adapters.postgres.rows import (
    call_to_json,
    cancel_request_from_row,
    dump,
    event_to_json,
    finish_to_json,
    key_to_json,
    new_run_to_json,
)
from app.adapters.postgres.run_statements import ACCEPT_NEW, FINISH, JOURNAL, RUN_STATES
from app.runs.errors import StoreUnavailableError
from app.runs.ports import FinishResult, JournalWrite, Permission, RunNotifier
from app.runs.run import TERMINAL, FinishRun, NewRun, RunKey, RunStatus

LOCK_MS = 200
"""How long a batch waits for a row that somebody is just inserting; other locks it passes over."""

OwnersWrite = JournalWrite | FinishRun
OwnersAnswer = Permission | FinishResult | Later

Row = Mapping[str, Any]
Ownership = tuple[RunKey, int]
"""A run and the fence under which somebody owns it."""
Kind = TypeVar("Kind", JournalWrite, FinishRun)


@dataclass(slots=True)
class ClaimedInsert:
    """A run to insert, claimed for a worker."""

    new: NewRun
    worker_id: str
    maybe_stored: bool = False
    """True once the database went away in the middle: the row that is there may be this one."""


class PostgresJournal:
    """Implements the journal port over connections that all runs share.

    Runs are accepted over one of their own, so that neither kind of write waits for the other's
    commit. What owners write shares the other one: of two writes of a run, the second must see what
    the first has stored.
    """

    def __init__(self, url: str, patience: Patience) -> None:
        self._url = url
        self._patience = replace(patience, lock_ms=LOCK_MS)
        self.notifier = RunNotifier()
        """Notified of every run of which events were written here, or that has ended here."""
        self._accepting: GroupCommit[ClaimedInsert, datetime | None] = GroupCommit(
            self._connect, accept_in_batch
        )
        self._owners: GroupCommit[OwnersWrite, OwnersAnswer] = GroupCommit(
            self._connect, write_in_batch
        )

    async def start(self) -> None:
        """Connect and begin to write.

        Raises:
            StoreUnavailableError: the database cannot be reached.
        """
        await self._accepting.start()
        try:
            await self._owners.start()
        except StoreUnavailableError:
            await self._accepting.stop()
            raise

    async def stop(self, *, grace_seconds: float = STOP_SECONDS) -> None:
        """Write what is in line, then end; what cannot be written in time is given up."""
        async with asyncio.TaskGroup() as group:
            for commits in (self._accepting, self._owners):
                group.create_task(commits.stop(grace_seconds=grace_seconds))

    async def insert(self, insert: ClaimedInsert, *, timeout_seconds: float) -> datetime | None:
        """Insert a claimed run and return when it was created; None if it met another row.

        Raises:
            StoreUnavailableError: the database did not answer in time. The run may yet be stored
                if its insert was under way.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                return await self._accepting.submit(insert)
        except TimeoutError:
            raise StoreUnavailableError from None

    async def write(self, write: JournalWrite) -> Permission:
        """Store a piece of a run's journal; return whether the run may go on."""
        permission = cast("Permission", await self._owners.submit(write))
        if write.events:
            self.notifier.notify(write.key)
        return permission

    async def finish(self, finish: FinishRun) -> FinishResult:
        """Finish a run with one guarded update."""
        finished = cast("FinishResult", await self._owners.submit(finish))
        self.notifier.notify(finish.key)
        return finished

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        """Return a connection on which statements are prepared at once and stay prepared.

        They only look rows up by their keys: a plan that was made while a table was small, and
        reads all of it, must not stay when the table has grown.
        """
        connection = await Connection.open(
            self._url, self._patience, autocommit=True, row_factory=dict_row, prepare_threshold=0
        )
        await connection.execute("SET enable_seqscan = off")
        return connection


async def accept_in_batch(
    connection: psycopg.AsyncConnection[Any], inserts: Sequence[ClaimedInsert]
) -> Sequence[datetime | None]:
    """Insert runs with one statement, which is a transaction of its own.

    Return for each when it was created, or None if it met something and must be accepted by itself.
    """
    first: dict[RunKey, ClaimedInsert] = {}
    for insert in inserts:
        first.setdefault(insert.new.key, insert)
    rows = [new_run_to_json(first[key].new, first[key].worker_id) for key in sorted(first)]
    try:
        found = await _rows(connection, ACCEPT_NEW, dump(rows))
    except LockNotAvailable:
        if len(inserts) == 1:
            return [None]  # somebody is just making the row
        raise
    except Exception:
        for insert in inserts:
            insert.maybe_stored = True
        raise
    created = {RunKey(row["tenant_id"], row["run_id"]): row["created_at"] for row in found}
    return [
        created.get(insert.new.key) if first[insert.new.key] is insert else None
        for insert in inserts
    ]


async def write_in_batch(
    connection: psycopg.AsyncConnection[Any], writes: Sequence[OwnersWrite]
) -> Sequence[OwnersAnswer]:
    """Write what owners have to write, each kind with one statement; answer in its order.

    Nothing joins the statements: a write is whole by itself, and bears being repeated if the
    second statement fails.
    """
    journals, finishes = _places(writes, JournalWrite), _places(writes, FinishRun)
    answers: dict[int, OwnersAnswer] = {}
    if journals:
        permissions = await _write_all(connection, list(journals.values()))
        answers |= zip(journals, permissions, strict=True)
    if finishes:
        finished = await _finish_all(connection, list(finishes.values()))
        answers |= zip(finishes, finished, strict=True)
    return [answers[place] for place in range(len(writes))]


def _places(writes: Sequence[OwnersWrite], kind: type[Kind]) -> dict[int, Kind]:
    return {place: write for place, write in enumerate(writes) if isinstance(write, kind)}


async def _write_all(
    connection: psycopg.AsyncConnection[Any], writes: Sequence[JournalWrite]
) -> Sequence[Permission | Later]:
    asked = list(dict.fromkeys((write.key, write.fence) for write in writes))
    parameters = _owners(asked), _calls_of(writes), _events_of(writes)
    owned = _by_owner(await _rows(connection, JOURNAL, *parameters))
    states = await _states(connection, [each for each in asked if each not in owned])
    return [_permission((write.key, write.fence), owned, states) for write in writes]


async def _finish_all(
    connection: psycopg.AsyncConnection[Any], finishes: Sequence[FinishRun]
) -> Sequence[FinishResult | Later]:
    first: dict[Ownership, FinishRun] = {}
    for finish in finishes:
        first.setdefault((finish.key, finish.fence), finish)
    ends = first.values()
    parameters = dump([finish_to_json(end) for end in ends]), _calls_of(ends), _events_of(ends)
    finished = _by_owner(await _rows(connection, FINISH, *parameters))
    states = await _states(connection, [each for each in first if each not in finished])
    return [_finish_result(finish, finished, states) for finish in finishes]


async def _states(
    connection: psycopg.AsyncConnection[Any], asked: Sequence[Ownership]
) -> Mapping[Ownership, Row]:
    """Return the state of runs that a statement passed over."""
    return _by_owner(await _rows(connection, RUN_STATES, _owners(asked))) if asked else {}


async def _rows(
    connection: psycopg.AsyncConnection[Any], statement: str, *documents: str
) -> Sequence[Row]:
    cursor = await connection.execute(statement, documents)
    return await cursor.fetchall()


def _permission(
    asking: Ownership, owned: Mapping[Ownership, Row], states: Mapping[Ownership, Row]
) -> Permission | Later:
    if asking in owned:
        return Permission(owned=True, cancel_request=cancel_request_from_row(owned[asking]))
    row = states.get(asking)
    if row is None or _has_no_owner(row):
        return Permission(owned=False, cancel_request=None)
    return Later.LATER


def _finish_result(
    finish: FinishRun, finished: Mapping[Ownership, Row], states: Mapping[Ownership, Row]
) -> FinishResult | Later:
    """Return what became of a finish; one that was written before is known by its very seconds."""
    asking = finish.key, finish.fence
    if asking in finished:
        return FinishResult(done=True, finished_at=finished[asking]["finished_at"])
    row = states.get(asking)
    if row is None:
        return FinishResult(done=False)
    if _has_no_owner(row):
        same = row["status"] == finish.status and row["active_seconds"] == finish.active_seconds
        return FinishResult(done=same, finished_at=row["finished_at"] if same else None)
    cancel_request = cancel_request_from_row(row)
    if cancel_request is not None and finish.status is not RunStatus.CANCELLED:
        return FinishResult(done=False, cancel_request=cancel_request)
    return Later.LATER


def _has_no_owner(row: Row) -> bool:
    return row["status"] in TERMINAL or row["status"] == RunStatus.QUEUED


def _calls_of(writes: Iterable[OwnersWrite]) -> str:
    """Return the calls to write; of one that is written twice, the later state."""
    last = {
        (write.key, write.fence, record.node_id): call_to_json(write.key, write.fence, record)
        for write in writes
        for record in write.calls
    }
    return dump(list(last.values()))


def _events_of(writes: Iterable[OwnersWrite]) -> str:
    """Return the events to write; one that two writes of an owner carry is the same in both."""
    once = {
        (write.key, write.fence, record.seq): event_to_json(write.key, write.fence, record)
        for write in writes
        for record in write.events
    }
    return dump(list(once.values()))


def _owners(asked: Iterable[Ownership]) -> str:
    return dump([key_to_json(key, fence) for key, fence in asked])


def _by_owner(rows: Iterable[Row]) -> dict[Ownership, Row]:
    return {(RunKey(row["tenant_id"], row["run_id"]), row["fence"]): row for row in rows}
