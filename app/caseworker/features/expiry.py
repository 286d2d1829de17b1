"""Deletes data of ended runs whose retention period is over, and of requests that expired.

Runs are processed in the order of their end times. If the data of a run is deleted but the run is
kept, the end time that was reached is stored, so that the next sweep starts there.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from caseworker.runs.postgres.erasure import delete_runs
from caseworker.runs.postgres.run_statements import STORED_BYTES

Batch = Mapping[str, Any]
"""What to delete: ``tenant``, ``record`` (the category), ``days`` and ``limit`` (runs or rows)."""

Drop = Callable[[AsyncConnection, Batch], Awaitable[bool]]
"""Deletes one batch of data of runs that ended more than ``days`` days ago; returns whether more
may exist."""

_UNUSED_FROM = """greatest(coalesce(pending_cancel_expires_at, created_at), CASE WHEN fence > 0
        THEN (created_at AT TIME ZONE 'UTC' + interval '1 day') AT TIME ZONE 'UTC' END)"""
"""SQL for the time from which a row without a run can be deleted, as the index ``runs_unused`` has
it; see :data:`caseworker.runs.postgres.run_statements.FENCE_UNUSED`."""

DROP_PENDING = f"""
DELETE FROM runs WHERE request IS NULL AND ctid = ANY (ARRAY(
    SELECT ctid FROM runs
    WHERE request IS NULL AND {_UNUSED_FROM} <= statement_timestamp()
    ORDER BY {_UNUSED_FROM} LIMIT %s FOR UPDATE SKIP LOCKED
))
"""  # noqa: S608
"""Delete expired cancel requests for runs that do not exist, and expired rows of
:data:`KEEP_FENCE`. By ``ctid``, the plan never joins them with all such rows."""

DUE = "statement_timestamp() - make_interval(days => %(days)s)"
"""SQL expression for the time before which data is deleted. An index can find it, other than one of
``clock_timestamp()``, which has another value for each row."""

OLD_RUNS = f"""
SELECT run_id FROM runs WHERE tenant_id = %(tenant)s AND finished_at < {DUE}
    AND NOT EXISTS (
        SELECT FROM webhook_deliveries d
        WHERE d.tenant_id = runs.tenant_id AND d.run_id = runs.run_id AND d.status = 'pending'
    )
ORDER BY finished_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
"""  # noqa: S608 - nothing of a caller's is in it, here and below
"""Select the runs whose retention period is over. A run with a pending webhook delivery is kept
until the message was delivered or delivery has failed."""

_SINCE = """coalesce((SELECT swept_until FROM retention
        WHERE tenant_id = %(tenant)s AND record = %(record)s), '-infinity')"""

BATCH = f"""
SELECT run_id, finished_at FROM runs
WHERE tenant_id = %(tenant)s AND finished_at > {_SINCE} AND finished_at < {DUE}
ORDER BY finished_at FETCH FIRST (%(limit)s::bigint) ROWS WITH TIES
"""  # noqa: S608
"""Select the next runs whose data is deleted, and all that ended at the same time as the last."""

OF_BATCH = "tenant_id = %(tenant)s AND run_id = ANY(%(run_ids)s)"
"""SQL condition for the rows of these runs. Their IDs are named, because Postgres would estimate a
range of end times at a multiple of the runs, and read whole tables."""

COUNT_AGAIN = f"""
UPDATE stored_runs s SET bytes = {STORED_BYTES} FROM runs
WHERE runs.tenant_id = %(tenant)s AND runs.run_id = ANY(%(run_ids)s)
    AND s.tenant_id = runs.tenant_id AND s.run_id = runs.run_id
"""  # noqa: S608
"""Update the stored size of runs after some of their data was deleted."""

SWEPT = """
INSERT INTO retention (tenant_id, record, swept_until) VALUES (%(tenant)s, %(record)s, %(upto)s)
ON CONFLICT (tenant_id, record) DO UPDATE SET swept_until = excluded.swept_until
"""


async def drop_runs(connection: AsyncConnection, batch: Batch) -> bool:
    """Delete a batch of ended runs with all their data; return whether there may be more."""
    old = (await connection.exec_driver_sql(OLD_RUNS, dict(batch))).scalars().all()
    await delete_runs(connection, batch["tenant"], old)
    return len(old) == int(batch["limit"])


def in_order(drops: Sequence[Drop]) -> Drop:
    """Return a function that deletes a batch with each of the functions."""

    async def drop_each(connection: AsyncConnection, batch: Batch) -> bool:
        return any([await drop(connection, batch) for drop in drops])

    return drop_each


def dropping(statement: str, *, recount: bool = False) -> Drop:
    """Return a function that deletes data of ended runs and stores its progress.

    ``statement`` deletes or changes the rows that :data:`OF_BATCH` selects. ``recount`` updates the
    stored size of these runs.
    """

    async def drop(connection: AsyncConnection, batch: Batch) -> bool:
        ended = (await connection.exec_driver_sql(BATCH, dict(batch))).all()
        if not ended:
            return False
        one = {**batch, "run_ids": [run.run_id for run in ended], "upto": ended[-1].finished_at}
        await connection.exec_driver_sql(statement, one)
        if recount:
            await connection.exec_driver_sql(COUNT_AGAIN, one)
        await connection.exec_driver_sql(SWEPT, one)
        return True

    return drop


drop_requests = dropping(
    f"UPDATE calls SET request = NULL WHERE {OF_BATCH} AND request IS NOT NULL",  # noqa: S608
    recount=True,
)
drop_events = dropping(f"DELETE FROM events WHERE {OF_BATCH}", recount=True)  # noqa: S608
drop_snapshots = dropping(f"DELETE FROM snapshots WHERE {OF_BATCH}")  # noqa: S608
