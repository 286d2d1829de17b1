"""The hot writes of runs, in batches that share a commit."""

import asyncio
from collections.abc import Sequence
from contextlib import nullcontext
from datetime import datetime
from typing import Any, TypeVar, cast

import psycopg
from psycopg.errors import LockNotAvailable
from psycopg.rows import dict_row

from app.adapters.postgres.connections import Connection, Patience
from app.adapters.postgres.group_commit import GroupCommit, Later
from app.adapters.postgres.hot_writes import ClaimedInsert, insert_all, settle_all, write_all
from app.runs.bells import Bells
from app.runs.errors import StoreUnavailableError
from app.runs.ports import JournalWrite, Permission, Settled
from app.runs.run import Settlement

LOCK_MS = 200
"""How long a batch waits for a row that somebody is just inserting; other locks it passes over."""

HotWrite = ClaimedInsert | JournalWrite | Settlement
HotAnswer = datetime | None | Permission | Settled | Later

Kind = TypeVar("Kind", ClaimedInsert, JournalWrite, Settlement)


class PostgresJournal:
    """Implements the journal port over one connection that all runs share."""

    def __init__(
        self, url: str, *, connect_timeout_seconds: float, answer_timeout_seconds: float = 30.0
    ) -> None:
        self._url = url
        self._patience = Patience(
            connect_seconds=connect_timeout_seconds,
            lock_ms=LOCK_MS,
            answer_seconds=answer_timeout_seconds,
        )
        self.bells = Bells()
        """Rung for every run that events of were written here, or that has ended here."""
        self._commits: GroupCommit[HotWrite, HotAnswer] = GroupCommit(self._connect, commit)

    async def start(self) -> None:
        """Connect and begin to write.

        Raises:
            StoreUnavailableError: the database cannot be reached.
        """
        await self._commits.start()

    async def stop(self) -> None:
        """Write what is in line, then end; a database that is away is not waited for."""
        await self._commits.stop()

    async def insert(self, insert: ClaimedInsert, *, timeout_seconds: float) -> datetime | None:
        """Insert a claimed run; None if its row existed before.

        Raises:
            StoreUnavailableError: the database did not answer in time. The run may yet be stored
                if its insert was under way.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                return cast("datetime | None", await self._commits.submit(insert))
        except TimeoutError:
            raise StoreUnavailableError from None

    async def write(self, write: JournalWrite) -> Permission:
        """Store a piece of a run's journal and tell whether the run may go on."""
        permission = cast("Permission", await self._commits.submit(write))
        if write.events:
            self.bells.ring(write.key)
        return permission

    async def settle(self, settlement: Settlement) -> Settled:
        """End a run with one guarded update."""
        settled = cast("Settled", await self._commits.submit(settlement))
        self.bells.ring(settlement.key)
        return settled

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


async def commit(
    connection: psycopg.AsyncConnection[Any], writes: Sequence[HotWrite]
) -> Sequence[HotAnswer]:
    """Write a batch in one transaction; answer in its order."""
    try:
        return await _commit(connection, writes)
    except LockNotAvailable:
        if len(writes) == 1 and isinstance(writes[0], ClaimedInsert):
            return [None]  # somebody is just making the row; it is sorted out apart
        raise
    except Exception:
        for insert in _places(writes, ClaimedInsert).values():
            insert.maybe_stored = True
        raise


async def _commit(
    connection: psycopg.AsyncConnection[Any], writes: Sequence[HotWrite]
) -> Sequence[HotAnswer]:
    inserts = _places(writes, ClaimedInsert)
    journals = _places(writes, JournalWrite)
    ends = _places(writes, Settlement)
    kinds = bool(inserts) + bool(journals) + bool(ends)
    answers: dict[int, HotAnswer] = {}
    async with connection.transaction() if kinds > 1 else nullcontext(), connection.cursor() as at:
        if inserts:
            created = await insert_all(at, list(inserts.values()))
            answers |= zip(inserts, created, strict=True)
        if journals:
            permissions = await write_all(at, list(journals.values()))
            answers |= zip(journals, permissions, strict=True)
        if ends:
            settled = await settle_all(at, list(ends.values()))
            answers |= zip(ends, settled, strict=True)
    return [answers[place] for place in range(len(writes))]


def _places(writes: Sequence[HotWrite], kind: type[Kind]) -> dict[int, Kind]:
    return {place: write for place, write in enumerate(writes) if isinstance(write, kind)}
