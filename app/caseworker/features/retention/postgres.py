"""Retention periods of tenants and the deletion of expired data in Postgres."""

from collections.abc import Mapping

from sqlalchemy import Column, Integer, Table, Text, text

from caseworker.features.expiry import DROP_PENDING, Drop
from caseworker.platform.errors import StoreUnavailableError
from caseworker.platform.postgres.audit import Act, record
from caseworker.platform.postgres.engines import Pool, transaction
from caseworker.runs.postgres.tables import INSTANT, metadata

retention = Table(
    "retention",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("record", Text, primary_key=True),
    Column("days", Integer),
    Column("swept_until", INSTANT),
)
"""Retention periods of tenants that have their own, and the progress of sweeps.

The row with an empty tenant name holds the time of the last sweep.
"""

Days = Mapping[str, int | None]
"""Retention period of each category in days; None keeps the data forever."""

RUNS_AT_ONCE = 100
"""Number of runs per transaction of a sweep; fewer after a timeout."""

BATCH_SECONDS = 30
"""Statement timeout of a sweep in seconds."""

FOR_EVER = -1
"""Value of ``days`` for data that a tenant keeps forever, regardless of the configuration."""

BEGIN_SWEEP = """
INSERT INTO retention AS r (tenant_id, record, swept_until) VALUES ('', 'sweep', clock_timestamp())
ON CONFLICT (tenant_id, record) DO UPDATE SET swept_until = clock_timestamp()
WHERE r.swept_until <= statement_timestamp() - make_interval(secs => %s::float8)
RETURNING true
"""

MERGE_STORED = "SELECT caseworker_merge_stored()"
"""Merge the storage counters that sessions write as separate rows, which would accumulate."""

DROP_KEPT = """
DELETE FROM kept_messages k WHERE NOT EXISTS (
    SELECT FROM runs r
    WHERE r.tenant_id = k.tenant_id AND r.run_id = k.run_id AND r.finished_at IS NULL
)
"""
"""Delete messages that were kept for a run while it ended. Otherwise its end deletes them."""

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


class PostgresRetention:
    """Retention periods and sweeps; every method is one transaction."""

    def __init__(self, pool: Pool, drops: Mapping[str, Drop]) -> None:
        """``drops`` has the function that deletes a batch, by category."""
        self._pool = pool
        self._drops = drops
        self._at_once = RUNS_AT_ONCE

    async def claim_sweep_and_merge_counters(self, interval_seconds: float) -> bool:
        """Claim the next sweep; return False if none is due.

        All processes together claim at most one in ``interval_seconds``. Also merges the storage
        counters, and deletes kept messages that no run needs any more.
        """
        self._at_once = RUNS_AT_ONCE
        async with transaction(self._pool) as connection:
            started = await connection.exec_driver_sql(BEGIN_SWEEP, (interval_seconds,))
            if started.one_or_none() is None:
                return False
            await connection.exec_driver_sql(MERGE_STORED)
            await connection.exec_driver_sql(DROP_KEPT)
            return True

    async def days_by_tenant(self, usual: Days) -> Mapping[str, Days]:
        """Return the retention periods by tenant; tenants that keep everything may be left out."""
        days_of_tenants: dict[str, dict[str, int | None]] = {}
        async with transaction(self._pool) as connection:
            if any(days is not None for days in usual.values()):
                for table in ("runs", "threads", "audit", "accounts"):
                    tenants = await connection.exec_driver_sql(TENANTS.format(table=table))
                    days_of_tenants |= {tenant: dict(usual) for tenant in tenants.scalars()}
            for row in (await connection.exec_driver_sql(OWN_DAYS)).all():
                days = days_of_tenants.setdefault(row.tenant_id, dict(usual))
                days[row.record] = None if row.days == FOR_EVER else row.days
        return days_of_tenants

    async def drop(self, tenant: str, record: str, *, days: int) -> bool:
        """Delete a batch of data that ended more than ``days`` ago; return whether more may exist.

        If a batch fails, the next one is smaller.

        Raises:
            StoreUnavailableError: a batch of one run failed.
        """
        limit = self._at_once
        batch = {"tenant": tenant, "record": record, "days": days, "limit": limit}
        try:
            async with transaction(self._pool) as connection:
                await connection.execute(text(f"SET LOCAL statement_timeout = '{BATCH_SECONDS}s'"))
                return await self._drops[record](connection, batch)
        except StoreUnavailableError:
            if limit == 1:
                raise
            self._at_once = max(1, limit // 10)
            return True

    async def drop_pending_cancels(self) -> bool:
        """Delete a batch of expired cancel requests for runs that do not exist.

        Returns whether there may be more.
        """
        async with transaction(self._pool) as connection:
            deleted = await connection.exec_driver_sql(DROP_PENDING, (RUNS_AT_ONCE,))
            return deleted.rowcount == RUNS_AT_ONCE


async def set_days(pool: Pool, tenant: str, category: str, days: int | None) -> None:
    """Set for how many days a tenant keeps a category of data.

    ``FOR_EVER`` keeps it forever; None applies the configured default.

    Raises:
        StoreUnavailableError: the database does not respond.
    """
    async with transaction(pool) as connection:
        await connection.exec_driver_sql(SET_DAYS, (tenant, category, days))
        await record(connection, tenant, Act.RETENTION_SET, category)
