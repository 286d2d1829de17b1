"""Writes that several transactions have in common."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import func, insert, or_, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from app.adapters.postgres.rows import call_to_json
from app.adapters.postgres.tables import calls, runs, snapshots
from app.runs.run import CallRecord, RunKey, Settlement


async def upsert_calls(
    connection: AsyncConnection, key: RunKey, records: Sequence[CallRecord]
) -> None:
    """Write journal rows; a call that has ended keeps the way it ended."""
    if not records:
        return
    statement = upsert(calls).values([call_to_json(key, record) for record in records])
    changed = {name: statement.excluded[name] for name in _CHANGING}
    still_open = calls.c.status.in_(("created", "running"))
    await connection.execute(
        statement.on_conflict_do_update(
            index_elements=[calls.c.tenant_id, calls.c.run_id, calls.c.seq],
            set_=changed,
            where=or_(still_open, calls.c.status == statement.excluded.status),
        )
    )


async def settle_unowned(connection: AsyncConnection, end: Settlement) -> None:
    """End a run that no worker owns; its row is locked by this transaction."""
    ended: dict[str, Any] = {
        "status": end.status.value,
        "finish_reason": end.finish_reason,
        "usage": dict(end.usage),
        "stop": dict(end.stop) if end.stop else None,
        "finished_at": func.clock_timestamp(),
        "cancel_delivered_at": end.delivered_at,
    }
    mine = (runs.c.tenant_id == end.key.tenant) & (runs.c.run_id == end.key.run_id)
    await connection.execute(update(runs).where(mine).values(ended))
    await upsert_calls(connection, end.key, end.calls)
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


_CHANGING = ("status", "charge", "outcome", "value", "node")
