"""The hot writes of runs, as batches: accepted, journaled, settled."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

import psycopg
from psycopg.rows import dict_row

from app.adapters.postgres.group_commit import GroupCommit
from app.adapters.postgres.hot_statements import ACCEPT, JOURNAL, SETTLE, STANDING
from app.adapters.postgres.json_text import dump
from app.adapters.postgres.rows import call_to_json, request_to_json, wish_from_row
from app.runs.errors import StoreUnavailableError
from app.runs.ports import JournalWrite, Permission, Settled
from app.runs.run import NewRun, RunKey, Settlement

Cursor = psycopg.AsyncCursor[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class ClaimedInsert:
    """A run to insert, claimed for a worker."""

    new: NewRun
    worker_id: str

    @property
    def key(self) -> RunKey:
        """The run."""
        return self.new.key


HotWrite = ClaimedInsert | JournalWrite | Settlement
HotAnswer = datetime | None | Permission | Settled


class PostgresJournal:
    """Implements the journal port over one connection that all runs share."""

    def __init__(self, url: str, *, connect_timeout_seconds: float) -> None:
        self._url = url
        self._connect_timeout_seconds = connect_timeout_seconds
        self._commits: GroupCommit[HotWrite, HotAnswer] = GroupCommit(self._connect, _commit)

    async def start(self) -> None:
        """Connect and begin to write."""
        await self._commits.start()

    async def stop(self) -> None:
        """Write what is in line, then end."""
        await self._commits.stop()

    async def insert(self, insert: ClaimedInsert, *, timeout_seconds: float) -> datetime | None:
        """Insert a claimed run; None if its row existed before.

        Raises:
            StoreUnavailableError: the database did not answer in time. The run may yet be stored.
        """
        try:
            async with asyncio.timeout(timeout_seconds):
                return cast("datetime | None", await self._commits.submit(insert))
        except TimeoutError:
            raise StoreUnavailableError from None

    async def write(self, write: JournalWrite) -> Permission:
        """Store a piece of a run's journal and tell whether the run may go on."""
        return cast("Permission", await self._commits.submit(write))

    async def settle(self, settlement: Settlement) -> Settled:
        """End a run with one guarded update."""
        return cast("Settled", await self._commits.submit(settlement))

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        return await psycopg.AsyncConnection.connect(
            self._url,
            autocommit=True,
            row_factory=dict_row,
            prepare_threshold=0,
            connect_timeout=int(self._connect_timeout_seconds),
        )


async def _commit(
    connection: psycopg.AsyncConnection[Any], writes: Sequence[HotWrite]
) -> list[HotAnswer]:
    """Write a batch in one transaction; answer in its order."""
    inserts = [write for write in writes if isinstance(write, ClaimedInsert)]
    journals = [write for write in writes if isinstance(write, JournalWrite)]
    settlements = [write for write in writes if isinstance(write, Settlement)]
    kinds = bool(inserts) + bool(journals) + bool(settlements)
    async with connection.transaction() if kinds > 1 else nullcontext(), connection.cursor() as at:
        created = await _insert(at, inserts) if inserts else {}
        owned = await _journal(at, journals) if journals else {}
        settled = await _settle(at, settlements) if settlements else {}
    return [_answer(write, created, owned, settled) for write in writes]


def _answer(
    write: HotWrite,
    created: dict[RunKey, datetime],
    owned: Mapping[RunKey, Permission],
    settled: Mapping[RunKey, Settled],
) -> HotAnswer:
    match write:
        case ClaimedInsert():
            return created.pop(write.key, None)  # a second insert of the same run finds it there
        case JournalWrite():
            return owned.get(write.key, Permission(owned=False, wish=None))
        case Settlement():
            return settled[write.key]


async def _insert(cursor: Cursor, inserts: Sequence[ClaimedInsert]) -> dict[RunKey, datetime]:
    rows = {
        insert.key: {
            "tenant_id": insert.key.tenant,
            "run_id": insert.key.run_id,
            "kind": insert.new.request.kind.value,
            "request": request_to_json(insert.new.request),
            "request_hash": insert.new.request_hash,
            "metadata": insert.new.metadata,
            "worker_id": insert.worker_id,
        }
        for insert in inserts
    }
    await cursor.execute(ACCEPT, (dump(list(rows.values())),))
    return {_key(row): row["created_at"] for row in await cursor.fetchall()}


async def _journal(cursor: Cursor, writes: Sequence[JournalWrite]) -> Mapping[RunKey, Permission]:
    asked = {write.key: write.fence for write in writes}
    calls = {
        (write.key, record.node_id): call_to_json(write.key, record)
        for write in writes
        for record in write.calls
    }
    snapshots = {
        write.key: {**_named(write.key), "snapshot": write.snapshot}
        for write in writes
        if write.snapshot is not None
    }
    await cursor.execute(
        JOURNAL, (_fences(asked), dump(list(calls.values())), dump(list(snapshots.values())))
    )
    rows = await cursor.fetchall()
    return {_key(row): Permission(owned=True, wish=wish_from_row(row)) for row in rows}


async def _settle(cursor: Cursor, settlements: Sequence[Settlement]) -> Mapping[RunKey, Settled]:
    calls = [call_to_json(end.key, record) for end in settlements for record in end.calls]
    await cursor.execute(SETTLE, (dump([_end(end) for end in settlements]), dump(calls)))
    done = {_key(row) for row in await cursor.fetchall()}
    answers = {end.key: Settled(done=end.key in done) for end in settlements}
    refused = {end.key: end.fence for end in settlements if end.key not in done}
    if refused:
        await cursor.execute(STANDING, (_fences(refused),))
        for row in await cursor.fetchall():
            answers[_key(row)] = Settled(done=False, wish=wish_from_row(row))
    return answers


def _end(end: Settlement) -> dict[str, Any]:
    return {
        **_named(end.key),
        "fence": end.fence,
        "status": end.status.value,
        "finish_reason": end.finish_reason,
        "result": end.result,
        "usage": end.usage,
        "stop": end.stop,
        "active_seconds": end.active_seconds,
        "delivered_at": end.delivered_at.isoformat() if end.delivered_at else None,
        "snapshot": end.snapshot,
    }


def _fences(asked: Mapping[RunKey, int]) -> str:
    return dump([{**_named(key), "fence": fence} for key, fence in asked.items()])


def _named(key: RunKey) -> dict[str, str]:
    return {"tenant_id": key.tenant, "run_id": key.run_id}


def _key(row: Mapping[str, Any]) -> RunKey:
    return RunKey(row["tenant_id"], row["run_id"])
