"""What a batch of hot writes is in SQL, and what the rows that come back mean for each writer.

Writers of one batch know nothing of one another, and two of them may mean the same run: an owner
that has lost it and the owner that has it now, or two callers that chose the same id. Everything is
therefore matched by run and fence, and every writer is told its own truth.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import psycopg

from app.adapters.postgres.group_commit import Later
from app.adapters.postgres.hot_statements import ACCEPT, FINISH, JOURNAL, STANDING
from app.adapters.postgres.json_text import dump
from app.adapters.postgres.rows import (
    call_to_json,
    cancel_request_from_row,
    event_to_json,
    request_to_json,
)
from app.runs.ports import FinishResult, JournalWrite, Permission
from app.runs.run import (
    TERMINAL,
    CallRecord,
    EventRecord,
    FinishRun,
    NewRun,
    RunKey,
    RunStatus,
)

Cursor = psycopg.AsyncCursor[dict[str, Any]]
Row = Mapping[str, Any]
Ownership = tuple[RunKey, int]
"""A run and the fence under which somebody owns it."""


@dataclass(slots=True)
class ClaimedInsert:
    """A run to insert, claimed for a worker."""

    new: NewRun
    worker_id: str
    maybe_stored: bool = False
    """True once the database went away in the middle: the row that is there may be this one."""

    @property
    def key(self) -> RunKey:
        """The run."""
        return self.new.key


async def insert_all(cursor: Cursor, inserts: Sequence[ClaimedInsert]) -> Sequence[datetime | None]:
    """Insert runs; answer each with when it was created, or None if it must be sorted out apart."""
    first: dict[RunKey, ClaimedInsert] = {}
    for insert in inserts:
        first.setdefault(insert.key, insert)
    rows = [_inserted(first[key]) for key in sorted(first)]
    await cursor.execute(ACCEPT, (dump(rows),))
    created = {_key(row): row["created_at"] for row in await cursor.fetchall()}
    return [created.get(insert.key) if first[insert.key] is insert else None for insert in inserts]


async def write_all(cursor: Cursor, writes: Sequence[JournalWrite]) -> Sequence[Permission | Later]:
    """Store what runs did; answer each whether it may go on."""
    asked = list(dict.fromkeys((write.key, write.fence) for write in writes))
    calls = _calls((write.key, write.fence, write.calls) for write in writes)
    snapshots = {
        (write.key, write.fence): {**_named(write.key, write.fence), "snapshot": write.snapshot}
        for write in writes
        if write.snapshot is not None
    }
    events = _events((write.key, write.fence, write.events) for write in writes)
    parameters = _owners(asked), dump(list(snapshots.values())), dump(calls), dump(events)
    await cursor.execute(JOURNAL, parameters)
    owned = {_ownership(row): row for row in await cursor.fetchall()}
    passed_over = await _standing(cursor, [each for each in asked if each not in owned])
    return [_permission((write.key, write.fence), owned, passed_over) for write in writes]


async def finish_all(cursor: Cursor, ends: Sequence[FinishRun]) -> Sequence[FinishResult | Later]:
    """End runs; answer each what became of its end."""
    first: dict[Ownership, FinishRun] = {}
    for end in ends:
        first.setdefault((end.key, end.fence), end)
    rows = [_end(end) for end in first.values()]
    calls = _calls((end.key, end.fence, end.calls) for end in first.values())
    events = _events((end.key, end.fence, end.events) for end in first.values())
    await cursor.execute(FINISH, (dump(rows), dump(calls), dump(events)))
    finish_result = {_ownership(row): row["finished_at"] for row in await cursor.fetchall()}
    passed_over = await _standing(cursor, [each for each in first if each not in finish_result])
    return [
        _finish_result(end, finish_result.get((end.key, end.fence)), passed_over) for end in ends
    ]


async def _standing(cursor: Cursor, asked: Sequence[Ownership]) -> Mapping[Ownership, Row]:
    if not asked:
        return {}
    await cursor.execute(STANDING, (_owners(asked),))
    return {_ownership(row): row for row in await cursor.fetchall()}


def _permission(
    asking: Ownership, owned: Mapping[Ownership, Row], passed_over: Mapping[Ownership, Row]
) -> Permission | Later:
    if asking in owned:
        return Permission(owned=True, cancel_request=cancel_request_from_row(owned[asking]))
    row = passed_over.get(asking)
    if row is None or _has_no_owner(row):
        return Permission(owned=False, cancel_request=None)
    return Later.LATER


def _finish_result(
    end: FinishRun, finished_at: datetime | None, passed_over: Mapping[Ownership, Row]
) -> FinishResult | Later:
    """Tell what became of an end; that it was written before is known by its very seconds."""
    row = passed_over.get((end.key, end.fence))
    if finished_at is not None or row is None:
        return FinishResult(done=finished_at is not None, finished_at=finished_at)
    if _has_no_owner(row):
        same = row["status"] == end.status and row["active_seconds"] == end.active_seconds
        return FinishResult(done=same, finished_at=row["finished_at"] if same else None)
    cancel_request = cancel_request_from_row(row)
    if cancel_request is not None and end.status is not RunStatus.CANCELLED:
        return FinishResult(done=False, cancel_request=cancel_request)
    return Later.LATER


def _has_no_owner(row: Row) -> bool:
    return row["status"] in TERMINAL or row["status"] == RunStatus.QUEUED


def _inserted(insert: ClaimedInsert) -> dict[str, Any]:
    return {
        "tenant_id": insert.key.tenant,
        "run_id": insert.key.run_id,
        "kind": insert.new.request.kind.value,
        "request": request_to_json(insert.new.request),
        "request_hash": insert.new.request_hash,
        "idempotency_key": insert.new.idempotency_key,
        "metadata": insert.new.metadata,
        "worker_id": insert.worker_id,
    }


def _calls(owners: Iterable[tuple[RunKey, int, Sequence[CallRecord]]]) -> list[dict[str, Any]]:
    """Return the rows to write; of a call that is written twice, the later state."""
    last = {
        (key, fence, record.node_id): {**call_to_json(key, record), "fence": fence}
        for key, fence, records in owners
        for record in records
    }
    return list(last.values())


def _events(owners: Iterable[tuple[RunKey, int, Sequence[EventRecord]]]) -> list[dict[str, Any]]:
    """Return the rows to write; an event that two writes of an owner carry is the same in both."""
    rows: dict[tuple[RunKey, int, int], dict[str, Any]] = {}
    for key, fence, records in owners:
        for record in records:
            if (key, fence, record.seq) not in rows:
                row = {**event_to_json(key, record), "fence": fence}
                rows[key, fence, record.seq] = row
    return list(rows.values())


def _end(end: FinishRun) -> dict[str, Any]:
    return {
        **_named(end.key, end.fence),
        "status": end.status.value,
        "finish_reason": end.finish_reason,
        "result": end.result,
        "usage": end.usage,
        "stop": end.stop,
        "active_seconds": end.active_seconds,
        "delivered_at": end.delivered_at.isoformat() if end.delivered_at else None,
        "snapshot": end.snapshot,
    }


def _owners(asked: Iterable[Ownership]) -> str:
    return dump([_named(key, fence) for key, fence in asked])


def _named(key: RunKey, fence: int) -> dict[str, Any]:
    return {"tenant_id": key.tenant, "run_id": key.run_id, "fence": fence}


def _ownership(row: Row) -> Ownership:
    return _key(row), row["fence"]


def _key(row: Row) -> RunKey:
    return RunKey(row["tenant_id"], row["run_id"])
