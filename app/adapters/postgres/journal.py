"""The hot writes of runs, in batches that share a commit."""

import asyncio
from collections.abc import Sequence
from datetime import datetime
from typing import Any, TypeVar, cast

import psycopg
from psycopg.errors import LockNotAvailable
from psycopg.rows import dict_row

from app.adapters.postgres.connections import Connection, Patience
from app.adapters.postgres.group_commit import STOP_SECONDS, GroupCommit, Later
from app.adapters.postgres.hot_writes import ClaimedInsert, finish_all, insert_all, write_all
from app.runs.errors import StoreUnavailableError
from app.runs.notifier import RunNotifier
from app.runs.ports import FinishResult, JournalWrite, Permission
from app.runs.run import FinishRun

LOCK_MS = 200
"""How long a batch waits for a row that somebody is just inserting; other locks it passes over."""

OwnersWrite = JournalWrite | FinishRun
OwnersAnswer = Permission | FinishResult | Later

Kind = TypeVar("Kind", JournalWrite, FinishRun)


class PostgresJournal:
    """Implements the journal port over connections that all runs share.

    Runs are accepted over one of their own, so that neither kind of write waits for the other's
    commit. What owners write shares the other one: of two writes of a run, the second must see what
    the first has stored.
    """

    def __init__(
        self, url: str, *, connect_timeout_seconds: float, answer_timeout_seconds: float = 30.0
    ) -> None:
        self._url = url
        self._patience = Patience(
            connect_seconds=connect_timeout_seconds,
            lock_ms=LOCK_MS,
            answer_seconds=answer_timeout_seconds,
        )
        self.notifier = RunNotifier()
        """Rung for every run that events of were written here, or that has ended here."""
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
        """Insert a claimed run; None if it must be sorted out apart.

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
        """Store a piece of a run's journal and tell whether the run may go on."""
        permission = cast("Permission", await self._owners.submit(write))
        if write.events:
            self.notifier.notify(write.key)
        return permission

    async def finish(self, finish_run: FinishRun) -> FinishResult:
        """End a run with one guarded update."""
        finish_result = cast("FinishResult", await self._owners.submit(finish_run))
        self.notifier.notify(finish_run.key)
        return finish_result

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        return await connect_for_hot_writes(self._url, self._patience)


async def connect_for_hot_writes(url: str, patience: Patience) -> Connection:
    """Return a connection on which statements are prepared at once and stay prepared.

    They only look rows up by their keys: a plan that was made while a table was small, and reads
    all of it, must not stay when the table has grown.
    """
    connection = await Connection.open(
        url, patience, autocommit=True, row_factory=dict_row, prepare_threshold=0
    )
    await connection.execute("SET enable_seqscan = off")
    return connection


async def accept_in_batch(
    connection: psycopg.AsyncConnection[Any], inserts: Sequence[ClaimedInsert]
) -> Sequence[datetime | None]:
    """Insert runs with one statement, which is a transaction of its own."""
    try:
        return await insert_all(connection.cursor(), inserts)
    except LockNotAvailable:
        if len(inserts) == 1:
            return [None]  # somebody is just making the row; it is sorted out apart
        raise
    except Exception:
        for insert in inserts:
            insert.maybe_stored = True
        raise


async def write_in_batch(
    connection: psycopg.AsyncConnection[Any], writes: Sequence[OwnersWrite]
) -> Sequence[OwnersAnswer]:
    """Write what owners have to write, each kind with one statement; answer in its order.

    Nothing joins the statements: a write is whole by itself, and bears being repeated if the
    second statement fails.
    """
    journals, ends = _places(writes, JournalWrite), _places(writes, FinishRun)
    answers: dict[int, OwnersAnswer] = {}
    if journals:
        permissions = await write_all(connection.cursor(), list(journals.values()))
        answers |= zip(journals, permissions, strict=True)
    if ends:
        finish_result = await finish_all(connection.cursor(), list(ends.values()))
        answers |= zip(ends, finish_result, strict=True)
    return [answers[place] for place in range(len(writes))]


def _places(writes: Sequence[OwnersWrite], kind: type[Kind]) -> dict[int, Kind]:
    return {place: write for place, write in enumerate(writes) if isinstance(write, kind)}
