"""Storing a wish to stop: on the run's own row, whether the run exists or not."""

import json
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import RowMapping, case, delete, func, null, or_, select
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.adapters.postgres.rows import call_from_row, cancel_request_from_row, run_from_row
from app.adapters.postgres.tables import calls, runs
from app.adapters.postgres.writing import finish_unowned, journal_of, last_seq_of
from app.runs.ending import cancelled_while_queued
from app.runs.errors import TooManyPendingCancelsError
from app.runs.ports import Cancelled
from app.runs.run import TERMINAL, CallRecord, CancelRequest, Run, RunKey, RunStatus

STOP_CHANNEL = "caseworker_stop"
"""Where workers hear at once of a wish to stop; they also look for themselves, see the beat."""

RECEIPT_CALLS = 100
"""How many calls a receipt names at most."""

EXPIRED_AT_ONCE = 100
"""How many expired intents a new one clears away at most."""


@dataclass(frozen=True, slots=True)
class PendingCancelLimits:
    """How wishes for runs that do not exist are kept."""

    ttl_seconds: float
    limit: int
    """Per tenant."""


async def cancel_in(
    connection: AsyncConnection,
    key: RunKey,
    cancel_request: CancelRequest,
    pending_cancels: PendingCancelLimits,
) -> Cancelled:
    """Store a wish in this transaction; settle the run if nobody executes it.

    Raises:
        TooManyIntentsError: too many wishes wait for runs that do not exist.
    """
    row = await _store(connection, key, cancel_request, pending_cancels)
    if row is None:
        return await _finished_before(connection, key)
    stored = cancel_request_from_row(row)
    if row["request"] is None:
        await _require_room(connection, key.tenant, pending_cancels)
        return Cancelled(None, stored)
    run = run_from_row(row)
    begun = await _begun(connection, key)
    if run.status is RunStatus.QUEUED and stored is not None:
        records, last_seq = await journal_of(connection, key), await last_seq_of(connection, key)
        end = cancelled_while_queued(run, stored, records, last_seq=last_seq)
        await finish_unowned(connection, end)
        run = await _read(connection, key)
    else:
        await _notify(connection, key, run)
    return Cancelled(run, run.cancel_request, calls=begun)


async def _store(
    connection: AsyncConnection,
    key: RunKey,
    cancel_request: CancelRequest,
    pending_cancels: PendingCancelLimits,
) -> RowMapping | None:
    """Write the wish onto the run's row; None if the run has ended. The first wish counts."""
    now = func.clock_timestamp()
    expires = now + timedelta(seconds=pending_cancels.ttl_seconds)
    statement = upsert(runs).values(
        tenant_id=key.tenant,
        run_id=key.run_id,
        cancel_requested_at=now,
        cancel_requested_by=cancel_request.requested_by,
        cancel_reason=cancel_request.reason,
        intent_expires_at=expires,
    )
    expired = runs.c.request.is_(None) & (runs.c.intent_expires_at <= now)
    counts = runs.c.cancel_requested_at.is_(None) | expired
    kept = {
        column: case((counts, statement.excluded[column]), else_=runs.c[column])
        for column in ("cancel_requested_at", "cancel_requested_by", "cancel_reason")
    }
    waits = case((runs.c.request.is_(None), statement.excluded.intent_expires_at), else_=null())
    statement = statement.on_conflict_do_update(
        index_elements=[runs.c.tenant_id, runs.c.run_id],
        set_={**kept, "intent_expires_at": waits},
        where=or_(runs.c.status.is_(None), runs.c.status.not_in([s.value for s in TERMINAL])),
    )
    found = await connection.execute(statement.returning(runs))
    row: RowMapping | None = found.mappings().one_or_none()
    return row


async def _finished_before(connection: AsyncConnection, key: RunKey) -> Cancelled:
    run = await _read(connection, key)
    return Cancelled(run, run.cancel_request, already_finished=True)


async def _require_room(
    connection: AsyncConnection, tenant: str, pending_cancels: PendingCancelLimits
) -> None:
    """Clear some expired intents away and refuse more than the limit of living ones."""
    of_tenant = (runs.c.tenant_id == tenant) & runs.c.request.is_(None)
    expired = select(runs.c.run_id).where(
        of_tenant, runs.c.intent_expires_at <= func.clock_timestamp()
    )
    gone = expired.limit(EXPIRED_AT_ONCE).with_for_update(skip_locked=True)
    await connection.execute(delete(runs).where(of_tenant, runs.c.run_id.in_(gone)))
    living = select(func.count()).where(
        of_tenant, runs.c.intent_expires_at > func.clock_timestamp()
    )
    if (await connection.scalar(living) or 0) > pending_cancels.limit:
        raise TooManyPendingCancelsError


async def _read(connection: AsyncConnection, key: RunKey) -> Run:
    query = select(runs).where(runs.c.tenant_id == key.tenant, runs.c.run_id == key.run_id)
    return run_from_row((await connection.execute(query)).mappings().one())


async def _begun(connection: AsyncConnection, key: RunKey) -> tuple[CallRecord, ...]:
    """Return the LLM and tool calls that had taken effect, or may have.

    A call that is journaled as created had passed its barrier, or was about to ask. The run's row
    is locked meanwhile, so a long journal is not read as a whole.
    """
    last = (
        select(calls)
        .where(calls.c.tenant_id == key.tenant, calls.c.run_id == key.run_id)
        .where(calls.c.node["kind"].astext.in_(("llm", "tool")))
        .order_by(calls.c.seq.desc())
        .limit(RECEIPT_CALLS)
    )
    rows = (await connection.execute(last)).mappings().all()
    return tuple(call_from_row(row) for row in reversed(rows))


async def _notify(connection: AsyncConnection, key: RunKey, run: Run) -> None:
    """Tell the workers; a notification holds 8,000 bytes at most."""
    cancel_request = run.cancel_request
    told: dict[str, Any] = {"tenant": key.tenant, "run_id": key.run_id}
    if cancel_request is not None:
        told |= {
            "by": cancel_request.requested_by[:200],
            "reason": (cancel_request.reason or "")[:500] or None,
        }
    payload = json.dumps(told, ensure_ascii=False)
    await connection.execute(select(func.pg_notify(STOP_CHANNEL, payload)))
