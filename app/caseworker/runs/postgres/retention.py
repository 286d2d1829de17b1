"""Erases runs, and deletes data of ended runs whose retention period is over.

Erasing a run deletes every row that refers to it, in all tables. Only the messages of a thread
stay, marked as erased. Retention processes runs in the order of their end times. If it deletes
data but keeps the run, it stores the end time it reached, so that the next sweep starts there.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import Table, delete, func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from caseworker.runs.errors import RunNotEndedError, RunNotFoundError
from caseworker.runs.postgres.run_statements import STORED_BYTES
from caseworker.runs.postgres.tables import metadata, of_run, runs
from caseworker.runs.run import TERMINAL, RunKey

Batch = Mapping[str, Any]
"""What to delete: ``tenant``, ``record`` (the category), ``days`` and ``limit`` (runs or rows)."""

Drop = Callable[[AsyncConnection, Batch], Awaitable[bool]]
"""Deletes one batch of data of runs that ended more than ``days`` days ago; returns whether more
may exist."""

ERASED_AT = "run_erased_at"
"""Column of tables whose rows stay when their run is erased; it is set to the time of erasure."""

DROP_JOBS = """
DELETE FROM procrastinate_jobs WHERE status = 'todo' AND queueing_lock = ANY(%s)
"""

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

KEEP_FENCE = "INSERT INTO runs (tenant_id, run_id, fence) VALUES (%s, %s, %s)"
"""Keep the ID and the fencing token of an erased run.

A new run with the same ID continues above that token, so late writes of a former owner are
rejected.
"""

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


async def erase_in(connection: AsyncConnection, key: RunKey) -> None:
    """Erase a finished run in this transaction; its ID and fencing token are kept for a day.

    Raises:
        RunNotFoundError: the run does not exist.
        RunNotEndedError: the run has not ended.
    """
    query = select(runs.c.status, runs.c.fence).where(
        of_run(runs, key), runs.c.request.is_not(None)
    )
    run = (await connection.execute(query.with_for_update())).one_or_none()
    if run is None:
        raise RunNotFoundError(key.run_id)
    if run.status not in TERMINAL:
        raise RunNotEndedError(key.run_id)
    await delete_runs(connection, key.tenant, [key.run_id])
    await connection.exec_driver_sql(KEEP_FENCE, (key.tenant, key.run_id, run.fence))


def tables_of_runs() -> Sequence[Table]:
    """Return the tables whose rows belong to a run, with or without a foreign key; runs last."""
    tables = metadata.tables.values()
    of_runs = [table for table in tables if {"tenant_id", "run_id"} <= set(table.c.keys())]
    # Messages first: an answer that an unfinished run needs may have to be read from the calls.
    return sorted(of_runs, key=lambda table: (table is runs, ERASED_AT not in table.c))


async def delete_runs(connection: AsyncConnection, tenant: str, run_ids: Sequence[str]) -> None:
    """Delete runs whose rows are locked, with all their data."""
    if not run_ids:
        return
    for table in tables_of_runs():
        theirs = (table.c.tenant_id == tenant) & table.c.run_id.in_(run_ids)
        if ERASED_AT in table.c:
            erased = update(table).values({ERASED_AT: func.clock_timestamp()})
            await connection.execute(erased.where(theirs))
        else:
            await connection.execute(delete(table).where(theirs))
    jobs = [f"{tenant}/{run_id}" for run_id in run_ids]
    await connection.exec_driver_sql(DROP_JOBS, (jobs,))


async def drop_runs(connection: AsyncConnection, batch: Batch) -> bool:
    """Delete a batch of ended runs with all their data; return whether there may be more."""
    old = (await connection.exec_driver_sql(OLD_RUNS, dict(batch))).scalars().all()
    await delete_runs(connection, batch["tenant"], old)
    return len(old) == int(batch["limit"])


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
