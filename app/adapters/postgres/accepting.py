"""Accepting a run that may exist already, as a run or as somebody's early wish to stop it.

The plain case, a new run claimed by its own process, never comes here: one batched insert does it.
Whatever that insert finds in its way is sorted out here, with the row locked. Whoever is busy with
an idempotency key holds a lock on it.
"""

from typing import Any

from sqlalchemy import RowMapping, func, null, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.adapters.postgres.rows import request_to_json, run_from_row
from app.adapters.postgres.tables import runs
from app.adapters.postgres.writing import finish_unowned
from app.runs.ending import cancelled_while_queued
from app.runs.errors import IdempotencyMismatchError, QueueFullError, RunConflictError
from app.runs.ports import Accepted
from app.runs.run import NewRun, Run, RunKey


async def accept_in(
    connection: AsyncConnection, new: NewRun, *, worker_id: str | None, max_queued: int | None
) -> Accepted:
    """Store a run in this transaction, or return the one that the same request made before.

    Raises:
        RunConflictError: the id, or the pair of id and key, belongs to another request.
        IdempotencyMismatchError: the key was used with another body.
        QueueFullError: too many runs are queued.
    """
    if new.idempotency_key is not None:
        earlier = await _earlier_by_key(connection, new)
        if earlier is not None:
            return Accepted(earlier, created=False)
    while True:
        row = await _insert(connection, new, worker_id)
        if row is not None:
            if worker_id is None:  # a request that comes again is answered, however full it is
                await _require_room(connection, max_queued)
            return Accepted(run_from_row(row), created=True)
        row = await _locked(connection, new.key)
        if row is not None:
            return await _sort_out(connection, new, row, worker_id)


async def _earlier_by_key(connection: AsyncConnection, new: NewRun) -> Run | None:
    """Return the run that was made with this key; others with the key wait until we commit."""
    lock = func.hashtextextended(f"{new.key.tenant}\n{new.idempotency_key}", 0)
    await connection.execute(select(func.pg_advisory_xact_lock(lock)))
    found = await connection.execute(
        select(runs).where(
            runs.c.tenant_id == new.key.tenant, runs.c.idempotency_key == new.idempotency_key
        )
    )
    row = found.mappings().one_or_none()
    if row is None:
        return None
    if new.named and row["run_id"] != new.key.run_id:
        raise RunConflictError
    if row["request_hash"] != new.request_hash:
        raise IdempotencyMismatchError
    return run_from_row(row)


async def _require_room(connection: AsyncConnection, max_queued: int | None) -> None:
    """Refuse the run that was just queued where it is one too many."""
    if max_queued is None:
        return
    queued = select(runs.c.run_id).where(runs.c.status == "queued").limit(max_queued + 1)
    counted = select(func.count()).select_from(queued.subquery())
    if (await connection.scalar(counted) or 0) > max_queued:
        raise QueueFullError


async def _insert(
    connection: AsyncConnection, new: NewRun, worker_id: str | None
) -> RowMapping | None:
    statement = (
        upsert(runs)
        .values(tenant_id=new.key.tenant, run_id=new.key.run_id, **_values(new, worker_id))
        .on_conflict_do_nothing(index_elements=[runs.c.tenant_id, runs.c.run_id])
        .returning(runs)
    )
    inserted: RowMapping | None = (await connection.execute(statement)).mappings().one_or_none()
    return inserted


async def _locked(connection: AsyncConnection, key: RunKey) -> RowMapping | None:
    query = select(runs, _CANCEL_IS_PENDING).where(_is(key)).with_for_update()
    return (await connection.execute(query)).mappings().one_or_none()


async def _sort_out(
    connection: AsyncConnection, new: NewRun, row: RowMapping, worker_id: str | None
) -> Accepted:
    """Decide about a row that was there before."""
    if row["request"] is not None:
        return Accepted(_same_request(new, row), created=False)
    values = _values(new, None if row["intent_lives"] else worker_id)
    if not row["intent_lives"]:
        values |= _NO_CANCEL_REQUEST
    filled = update(runs).where(_is(new.key)).values(values).returning(runs)
    run = run_from_row((await connection.execute(filled)).mappings().one())
    if run.cancel_request is None:
        return Accepted(run, created=True)
    await finish_unowned(connection, cancelled_while_queued(run, run.cancel_request, ()))
    finish_result = (await connection.execute(select(runs).where(_is(new.key)))).mappings().one()
    return Accepted(run_from_row(finish_result), created=True)


def _same_request(new: NewRun, row: RowMapping) -> Run:
    other_key = new.idempotency_key is not None and row["idempotency_key"] != new.idempotency_key
    if row["request_hash"] != new.request_hash or other_key:
        raise RunConflictError
    return run_from_row(row)


def _values(new: NewRun, worker_id: str | None) -> dict[str, Any]:
    now = func.clock_timestamp()
    values: dict[str, Any] = {
        "kind": new.request.kind.value,
        "request": request_to_json(new.request),
        "request_hash": new.request_hash,
        "idempotency_key": new.idempotency_key,
        "metadata": dict(new.metadata),
        "created_at": now,
        "intent_expires_at": null(),
    }
    if worker_id is None:
        return values | {"status": "queued", "queued_at": now}
    claimed = {"status": "running", "worker_id": worker_id, "fence": 1, "attempts": 1}
    return values | claimed | {"claimed_at": now, "started_at": now}


def _is(key: RunKey) -> Any:
    return (runs.c.tenant_id == key.tenant) & (runs.c.run_id == key.run_id)


_CANCEL_IS_PENDING = (runs.c.intent_expires_at > func.clock_timestamp()).label("intent_lives")

_NO_CANCEL_REQUEST: dict[str, Any] = {
    "cancel_requested_at": null(),
    "cancel_requested_by": null(),
    "cancel_reason": null(),
}
