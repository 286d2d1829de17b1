"""Erases runs, and deletes data whose retention period is over.

Erasing a run deletes every row that refers to it, in all tables. Only the messages of a thread
stay, marked as erased. Sweeps follow the end times of runs. If a sweep deletes data but keeps the
run, its progress is stored, so that the remaining data is not scanned again each time.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import delete, func, select, text, update
from sqlalchemy.ext.asyncio import AsyncConnection

from caseworker.platform.errors import StoreUnavailableError
from caseworker.platform.postgres.engines import Engines, Pool, transaction
from caseworker.runs.errors import RunNotEndedError, RunNotFoundError
from caseworker.runs.postgres.run_statements import FENCE_UNUSED, STORED_BYTES
from caseworker.runs.postgres.tables import messages, metadata, of_run, runs
from caseworker.runs.retention import Days, Record
from caseworker.runs.run import TERMINAL, RunKey

RUNS_AT_ONCE = 100
"""Number of runs per transaction of a sweep; fewer after a timeout."""

BATCH_SECONDS = 30
"""Statement timeout of a sweep in seconds."""

FOR_EVER = -1
"""Value of ``days`` for data that a tenant keeps forever, regardless of the configuration."""

OF_RUNS = [
    table
    for table in reversed(metadata.sorted_tables)
    if {"tenant_id", "run_id"} <= set(table.c.keys()) and table not in (messages, runs)
]
"""Tables whose rows are deleted together with their run, including tables without a foreign key."""

DROP_JOBS = """
DELETE FROM procrastinate_jobs WHERE status = 'todo' AND queueing_lock = ANY(%s)
"""

BEGIN_SWEEP = """
INSERT INTO retention AS r (tenant_id, record, swept_until) VALUES ('', 'sweep', clock_timestamp())
ON CONFLICT (tenant_id, record) DO UPDATE SET swept_until = clock_timestamp()
WHERE r.swept_until <= clock_timestamp() - make_interval(secs => %s::float8)
RETURNING true
"""

MERGE_STORED = "SELECT caseworker_merge_stored()"
"""Merge the storage counters that sessions write as separate rows, which would accumulate."""

OWN_DAYS = "SELECT tenant_id, record, days FROM retention WHERE days IS NOT NULL"

SET_DAYS = """
INSERT INTO retention (tenant_id, record, days) VALUES (%s, %s, %s)
ON CONFLICT (tenant_id, record) DO UPDATE SET days = excluded.days
"""

TENANTS = """
WITH RECURSIVE tenant AS (
    SELECT min(tenant_id) AS tenant_id FROM {table}
    UNION ALL
    SELECT (SELECT min({table}.tenant_id) FROM {table} WHERE {table}.tenant_id > tenant.tenant_id)
    FROM tenant WHERE tenant.tenant_id IS NOT NULL
)
SELECT tenant_id FROM tenant WHERE tenant_id IS NOT NULL
"""
"""List the tenants in a table, reading one index entry per tenant instead of all entries."""

DROP_PENDING = f"""
DELETE FROM runs WHERE request IS NULL AND (tenant_id, run_id) IN (
    SELECT tenant_id, run_id FROM runs
    WHERE request IS NULL
        AND coalesce(pending_cancel_expires_at, created_at) <= clock_timestamp() AND {FENCE_UNUSED}
    LIMIT %s FOR UPDATE SKIP LOCKED
)
"""  # noqa: S608
"""Delete expired cancel requests for runs that do not exist, and expired rows of
:data:`KEEP_FENCE`."""

KEEP_FENCE = "INSERT INTO runs (tenant_id, run_id, fence) VALUES (%s, %s, %s)"
"""Keep the ID and the fencing token of an erased run.

A new run with the same ID continues above that token, so late writes of a former owner are
rejected.
"""

_DUE = "clock_timestamp() - make_interval(days => %(days)s)"

OLD_RUNS = f"""
SELECT run_id FROM runs WHERE tenant_id = %(tenant)s AND finished_at < {_DUE}
    AND NOT EXISTS (
        SELECT FROM webhook_deliveries d
        WHERE d.tenant_id = runs.tenant_id AND d.run_id = runs.run_id AND d.status = 'pending'
    )
ORDER BY finished_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
"""  # noqa: S608 - nothing of a caller's is in it, here and below
"""Select the runs whose retention period is over. A run with a pending webhook delivery is kept
until the message was delivered or delivery has failed."""

DROP_THREADS = f"""
DELETE FROM threads WHERE tenant_id = %(tenant)s AND thread_id IN (
    SELECT thread_id FROM threads t WHERE tenant_id = %(tenant)s AND created_at < {_DUE}
        AND NOT EXISTS (
            SELECT FROM messages m LEFT JOIN runs r USING (tenant_id, run_id)
            WHERE m.tenant_id = t.tenant_id AND m.thread_id = t.thread_id
                AND (m.created_at >= {_DUE} OR r.status IS NOT NULL AND r.finished_at IS NULL)
        )
    LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)
"""  # noqa: S608

_SINCE = """coalesce((SELECT swept_until FROM retention
        WHERE tenant_id = %(tenant)s AND record = %(record)s), '-infinity')"""

UPTO = f"""
SELECT max(finished_at) FROM (
    SELECT finished_at FROM runs
    WHERE tenant_id = %(tenant)s AND finished_at > {_SINCE} AND finished_at < {_DUE}
    ORDER BY finished_at LIMIT %(limit)s
) AS batch
"""  # noqa: S608

_OF_BATCH = f"""runs.tenant_id = %(tenant)s AND runs.finished_at > {_SINCE}
    AND runs.finished_at <= %(upto)s AND part.tenant_id = runs.tenant_id
    AND part.run_id = runs.run_id"""

DROP_PARTS: Mapping[Record, str] = {
    Record.REQUESTS: f"""UPDATE calls part SET request = NULL FROM runs
        WHERE {_OF_BATCH} AND part.request IS NOT NULL""",  # noqa: S608
    **{
        record: f"DELETE FROM {record.value} part USING runs WHERE {_OF_BATCH}"  # noqa: S608
        for record in (Record.EVENTS, Record.SNAPSHOTS, Record.ARTIFACTS)
    },
}

COUNT_AGAIN = f"UPDATE stored_runs part SET bytes = {STORED_BYTES} FROM runs WHERE {_OF_BATCH}"  # noqa: S608
"""Update the stored size of runs after :data:`DROP_PARTS` has deleted some of their data."""

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
    found = select(runs.c.status, runs.c.fence).where(
        of_run(runs, key), runs.c.request.is_not(None)
    )
    run = (await connection.execute(found.with_for_update())).one_or_none()
    if run is None:
        raise RunNotFoundError(key.run_id)
    if run.status not in TERMINAL:
        raise RunNotEndedError(key.run_id)
    await _delete_runs(connection, key.tenant, [key.run_id])
    await connection.exec_driver_sql(KEEP_FENCE, (key.tenant, key.run_id, run.fence))


async def _delete_runs(connection: AsyncConnection, tenant: str, run_ids: Sequence[str]) -> None:
    """Delete runs whose rows are locked, with all their data."""
    if not run_ids:
        return
    for table in (*OF_RUNS, runs):
        theirs = (table.c.tenant_id == tenant) & table.c.run_id.in_(run_ids)
        await connection.execute(delete(table).where(theirs))
    answers = (messages.c.tenant_id == tenant) & messages.c.run_id.in_(run_ids)
    erased = update(messages).where(answers).values(run_erased_at=func.clock_timestamp())
    await connection.execute(erased)
    jobs = [f"{tenant}/{run_id}" for run_id in run_ids]
    await connection.exec_driver_sql(DROP_JOBS, (jobs,))


async def set_days(pool: Pool, tenant: str, record: Record, days: int | None) -> None:
    """Set for how many days a tenant keeps a category of data.

    ``FOR_EVER`` keeps it forever; None applies the configured default.

    Raises:
        StoreUnavailableError: the database does not respond.
    """
    async with transaction(pool) as connection:
        await connection.exec_driver_sql(SET_DAYS, (tenant, record.value, days))


class PostgresRetention:
    """Deletes expired data in Postgres; implements the retention store."""

    def __init__(self, engines: Engines) -> None:
        self._pool = engines.work
        self._at_once = RUNS_AT_ONCE

    async def begin_sweep(self, interval_seconds: float) -> bool:
        """Claim a sweep for this process; return False if none is due."""
        self._at_once = RUNS_AT_ONCE
        async with transaction(self._pool) as connection:
            begun = await connection.exec_driver_sql(BEGIN_SWEEP, (interval_seconds,))
            if begun.one_or_none() is None:
                return False
            await connection.exec_driver_sql(MERGE_STORED)
            return True

    async def days_by_tenant(self, usual: Days) -> Mapping[str, Days]:
        """Return the retention periods in days by tenant."""
        found: dict[str, dict[Record, int | None]] = {}
        async with transaction(self._pool) as connection:
            if any(days is not None for days in usual.values()):
                for table in ("runs", "threads"):
                    tenants = await connection.exec_driver_sql(TENANTS.format(table=table))
                    found |= {tenant: dict(usual) for tenant in tenants.scalars()}
            for own in (await connection.exec_driver_sql(OWN_DAYS)).all():
                days = found.setdefault(own.tenant_id, dict(usual))
                days[Record(own.record)] = None if own.days == FOR_EVER else own.days
        return found

    async def drop(self, tenant: str, record: Record, *, days: int) -> bool:
        """Delete a batch of expired data; return whether there may be more.

        If a batch fails, the next one is smaller.
        """
        limit = self._at_once
        try:
            return await self._drop(tenant, record, days, limit)
        except StoreUnavailableError:
            if limit == 1:
                raise
            self._at_once = max(1, limit // 10)
            return True

    async def _drop(self, tenant: str, record: Record, days: int, limit: int) -> bool:
        asked = {"tenant": tenant, "record": record.value, "days": days, "limit": limit}
        async with transaction(self._pool) as connection:
            await connection.execute(text(f"SET LOCAL statement_timeout = '{BATCH_SECONDS}s'"))
            match record:
                case Record.RUNS:
                    old = (await connection.exec_driver_sql(OLD_RUNS, asked)).scalars().all()
                    await _delete_runs(connection, tenant, old)
                    return len(old) == limit
                case Record.THREADS:
                    gone = await connection.exec_driver_sql(DROP_THREADS, asked)
                    return gone.rowcount == limit
                case _:
                    return await _drop_parts(connection, record, asked)

    async def drop_pending_cancels(self) -> bool:
        """Delete a batch of expired cancel requests for runs that do not exist.

        Returns whether there may be more.
        """
        async with transaction(self._pool) as connection:
            gone = await connection.exec_driver_sql(DROP_PENDING, (RUNS_AT_ONCE,))
            return gone.rowcount == RUNS_AT_ONCE


async def _drop_parts(
    connection: AsyncConnection, record: Record, asked: Mapping[str, Any]
) -> bool:
    """Delete parts of the next runs and store the progress; return False if none are due."""
    upto = (await connection.exec_driver_sql(UPTO, dict(asked))).scalar_one()
    if upto is None:
        return False
    batch = {**asked, "upto": upto}
    await connection.exec_driver_sql(DROP_PARTS[record], batch)
    if record in (Record.REQUESTS, Record.EVENTS):
        await connection.exec_driver_sql(COUNT_AGAIN, batch)
    await connection.exec_driver_sql(SWEPT, batch)
    return True
