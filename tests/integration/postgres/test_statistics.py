"""Statistics that many requests read at once."""

import asyncio
from datetime import UTC, datetime, timedelta

from sqlalchemy import text

from caseworker.features.spend.postgres.statistics import PostgresStatistics
from caseworker.platform.postgres.engines import transaction
from tests.support.stores import Oracle, Stores


async def test_one_statement_at_a_time_sums_runs(stores: Stores, oracle: Oracle) -> None:
    """Further requests wait in the process, and leave connections and cores to other work."""
    statistics, now = PostgresStatistics(stores.engines), datetime.now(UTC)
    async with asyncio.TaskGroup() as group, transaction(stores.engines.control) as locking:
        await locking.execute(text("LOCK TABLE runs IN ACCESS EXCLUSIVE MODE"))
        reads = [
            group.create_task(statistics.find(tenant, "day", now - timedelta(days=1), now))
            for tenant in ("a", "a", "b")
        ]
        await oracle.until_waiting("relation")
        assert stores.engines.work.in_use == 1
    assert [read.result()["total"]["runs"] for read in reads] == [0, 0, 0]
