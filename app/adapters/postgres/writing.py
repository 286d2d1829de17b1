"""What several transactions have in common."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, insert, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from app.adapters.postgres.hot_statements import WRITE_CALLS, WRITE_EVENTS
from app.adapters.postgres.json_text import dump
from app.adapters.postgres.rows import call_from_row, call_to_json, event_to_json
from app.adapters.postgres.tables import calls, events, runs, snapshots
from app.engine.events import STEP_SKIPPED
from app.runs.run import CallRecord, EventRecord, FinishRun, RunKey


async def upsert_calls(
    connection: AsyncConnection, key: RunKey, records: Sequence[CallRecord]
) -> None:
    """Write journal rows; a call that has ended keeps the way it ended."""
    if not records:
        return
    rows = dump([call_to_json(key, record) for record in records])
    await connection.execute(text(WRITE_CALLS), {"calls": rows})


async def insert_events(
    connection: AsyncConnection, key: RunKey, records: Sequence[EventRecord]
) -> None:
    """Write events of a run whose row is locked by this transaction."""
    if not records:
        return
    rows = dump([event_to_json(key, record) for record in records])
    await connection.execute(text(WRITE_EVENTS), {"events": rows})


async def last_seq_of(connection: AsyncConnection, key: RunKey) -> int:
    """Return the number of a run's last event; its row is locked by this transaction.

    That must have happened in an earlier statement: one that waits for the lock does not see what
    was stored meanwhile.
    """
    of_run = (events.c.tenant_id == key.tenant) & (events.c.run_id == key.run_id)
    last = select(func.max(events.c.seq)).where(of_run)
    return await connection.scalar(last) or 0


async def skipped_in(connection: AsyncConnection, key: RunKey) -> frozenset[str]:
    """Return the steps of a run that were told to be skipped."""
    skipped = select(events.c.step_id).where(
        events.c.tenant_id == key.tenant,
        events.c.run_id == key.run_id,
        events.c.type == STEP_SKIPPED,
    )
    return frozenset((await connection.execute(skipped)).scalars())


async def journal_of(connection: AsyncConnection, key: RunKey) -> Sequence[CallRecord]:
    """Return the journal of a run, in the order of its CallNodes."""
    query = (
        select(calls)
        .where(calls.c.tenant_id == key.tenant, calls.c.run_id == key.run_id)
        .order_by(calls.c.seq)
    )
    return [call_from_row(row) for row in (await connection.execute(query)).mappings()]


async def finish_unowned(connection: AsyncConnection, end: FinishRun) -> None:
    """End a run that no worker owns; its row is locked by this transaction."""
    ended: dict[str, Any] = {
        "status": end.status.value,
        "finish_reason": end.finish_reason,
        "usage": dict(end.usage),
        "stop": dict(end.stop) if end.stop else None,
        "finished_at": func.clock_timestamp(),
        "cancel_delivered_at": end.delivered_at,
    }
    if end.result is not None:  # None would be stored as a JSON null
        ended["result"] = dict(end.result)
    mine = (runs.c.tenant_id == end.key.tenant) & (runs.c.run_id == end.key.run_id)
    await connection.execute(update(runs).where(mine).values(ended))
    await upsert_calls(connection, end.key, end.calls)
    await insert_events(connection, end.key, end.events)
    last = select(func.coalesce(func.max(snapshots.c.version), 0)).where(
        snapshots.c.tenant_id == end.key.tenant, snapshots.c.run_id == end.key.run_id
    )
    await connection.execute(
        insert(snapshots).values(
            tenant_id=end.key.tenant,
            run_id=end.key.run_id,
            version=last.scalar_subquery() + 1,
            final=True,
            snapshot=dict(end.snapshot),
        )
    )
