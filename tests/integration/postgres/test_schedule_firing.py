"""Many schedules that are due together: each fires once, and none holds up another."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from caseworker.features.quotas.postgres import PostgresQuotas
from caseworker.features.schedules.cron_times import CatchUp
from caseworker.features.schedules.due_runs import ScheduleFiring
from caseworker.features.schedules.postgres import PostgresSchedules
from caseworker.features.schedules.schedule import NewSchedule, Overlap
from caseworker.platform.errors import StoreUnavailableError
from caseworker.runs.quotas import Quota
from caseworker.settings.schema import WorkerSettings
from tests.integration.postgres.hourly import HOURLY, SCHEDULED_RUN
from tests.support.database import proxied, upstream_of
from tests.support.fault_proxy import FaultProxy
from tests.support.limits import store_limits
from tests.support.stores import Oracle, Stores, eventually, open_oracle, open_stores
from tests.support.tenants import open_tenants

KEYED = {"concurrency_key": "k", "concurrency_limit": 2}
COPY = """
INSERT INTO schedules (
    tenant_id, name, cron, timezone, catch_up, max_catch_up, overlap, paused, sent, request,
    request_hash, metadata, webhook, next_at, last_run_id, skipped
)
SELECT %s, 's' || n, '0 * * * *', timezone, catch_up, max_catch_up, overlap, paused, %s::json,
    request, request_hash, metadata, NULL, now() + make_interval(hours => n),
    CASE WHEN n %% 5 = 0 THEN 'unknown' END, 0
FROM schedules, generate_series(%s::integer, %s::integer) n WHERE name = 'template'
"""
LAST_AT = "SELECT last_at FROM schedules WHERE name = 's1'"
DUE = "UPDATE schedules SET next_at = date_trunc('hour', now()) WHERE name <> 'template'"
FIRED = """
SELECT tenant_id, metadata ->> 'schedule' AS name, count(*) AS runs FROM runs
WHERE metadata ->> 'scheduled_at' = (SELECT min(metadata ->> 'scheduled_at') FROM runs)
GROUP BY 1, 2
"""


@pytest.fixture
async def template(stores: Stores) -> NewSchedule:
    """Store the schedule that is copied; it is due in a year at most."""
    timing = replace(HOURLY, cron="0 0 1 1 *", catch_up=CatchUp.ONE)
    run = replace(SCHEDULED_RUN, body={"input": "2+2?"}, webhook=None)
    new = NewSchedule(
        tenant="default", name="template", timing=timing, run=run, overlap=Overlap.SKIP
    )
    await PostgresSchedules(stores.engines, store_limits(), max_schedules=5).put(new)
    return new


async def copy(
    oracle: Oracle, tenant: str, first: int, last: int, sent: str = '{"input": "2+2?"}'
) -> None:
    await oracle.rows(COPY, tenant, sent, first, last)


def firing_of(stores: Stores, **limits: Any) -> ScheduleFiring:
    return ScheduleFiring(stores.engines, store_limits(**limits))


async def quota(stores: Stores, tenant: str, **limits: Any) -> None:
    await PostgresQuotas(stores.engines.work, Quota()).put(tenant, Quota(**limits))


async def fired(oracle: Oracle) -> Counter[tuple[str, str]]:
    """Return how many runs each schedule has for the first of all instants."""
    return Counter(
        {(row["tenant_id"], row["name"]): row["runs"] for row in await oracle.rows(FIRED)}
    )


@pytest.mark.usefixtures("template")
async def test_a_thousand_schedules_of_one_minute_fire_once_in_two_processes(
    pair: tuple[Stores, Stores], oracle: Oracle
) -> None:
    """Some tenants have quotas, some runs a concurrency key; all get a job."""
    await quota(pair[0], "claims-only", max_running=1)
    await quota(pair[0], "limited", max_queued=500)
    for tenant, count in (("plain", 800), ("claims-only", 150), ("limited", 30)):
        await copy(oracle, tenant, 1, count)
    await copy(oracle, "keyed", 1, 20, '{"concurrency_key": "k", "concurrency_limit": 1}')
    await oracle.rows(DUE)
    async with asyncio.TaskGroup() as tasks:
        for stores in pair:
            tasks.create_task(firing_of(stores).fire_due())

    runs = await fired(oracle)
    assert len(runs) == 1000
    assert set(runs.values()) == {1}
    jobs = "SELECT count(*) FROM procrastinate_jobs WHERE queue_name = 'runs' AND status = 'todo'"
    assert await oracle.value(jobs) == await oracle.value("SELECT count(*) FROM runs")
    keys = "SELECT count(*) FROM runs WHERE concurrency_key = 'k' AND concurrency_limit = 1"
    assert await oracle.value(keys) >= 20
    due = "SELECT count(*) FROM schedules WHERE next_at < now() - interval '1 minute'"
    assert await oracle.value(due) == 0


@pytest.mark.usefixtures("template")
@pytest.mark.parametrize("seed", range(3))
async def test_processes_whose_connections_break_lose_and_double_no_run(
    stores: Stores, oracle: Oracle, database_url: str, seed: int
) -> None:
    """A drawn statement, a commit among them, loses its answer; the next process fires the rest."""
    rng = random.Random(seed)
    await quota(stores, "limited", max_queued=500)
    await copy(oracle, "plain", 1, 450)
    await copy(oracle, "limited", 1, 6)
    await oracle.rows(DUE)
    broken = 0
    for _ in range(6):
        async with interrupted(database_url, rng) as firing:
            try:
                await firing.fire_due()
            except StoreUnavailableError:
                broken += 1
    await firing_of(stores).fire_due()

    runs = await fired(oracle)
    assert broken > 0
    assert len(runs) == 456
    assert set(runs.values()) == {1}


@asynccontextmanager
async def interrupted(url: str, rng: random.Random) -> AsyncIterator[ScheduleFiring]:
    """Open a process that loses the answer to a drawn statement."""
    statement = rng.choice([b"COMMIT", b"UPDATE schedules SET", b"INSERT INTO runs"])
    async with FaultProxy(upstream_of(url)) as proxy, open_stores(proxied(url, proxy)) as stores:
        firing = firing_of(stores)
        proxy.lose_answer(request=statement, answer=b"")
        yield firing


@pytest.mark.usefixtures("template")
async def test_rejected_and_broken_schedules_hold_up_no_other(
    stores: Stores, oracle: Oracle
) -> None:
    """They are due first, have an error each, and are fired when the reason is gone."""
    await quota(stores, "full", max_queued=0)
    await copy(oracle, "full", 1, 250)
    await copy(oracle, "broken", 1, 1)
    await copy(oracle, "good", 1, 3)
    await oracle.rows(DUE)
    await oracle.rows("UPDATE schedules SET cron = 'never' WHERE tenant_id = 'broken'")
    await oracle.rows(
        "UPDATE schedules SET next_at = next_at - interval '30 seconds' WHERE tenant_id <> 'good'"
    )
    firing = firing_of(stores)
    await firing.fire_due()
    await firing.retry()

    assert set(await fired(oracle)) == {("good", f"s{n}") for n in range(1, 4)}
    errors = "SELECT last_error, count(*) FROM schedules WHERE next_at <= now() GROUP BY 1"
    found = {row["last_error"]: row["count"] for row in await oracle.rows(errors)}
    assert found == {
        "A quota of the tenant is exceeded.": 250,
        "The run could not be created.": 1,
    }
    await quota(stores, "full", max_queued=500)
    await oracle.rows("UPDATE schedules SET cron = '0 * * * *' WHERE tenant_id = 'broken'")
    for _ in range(2):
        await firing.retry()
    assert await oracle.value("SELECT count(*) FROM schedules WHERE last_error IS NOT NULL") == 0
    rejected = "SELECT count(DISTINCT (tenant_id, metadata ->> 'schedule')) FROM runs"
    assert await oracle.value(rejected) == 254


@pytest.mark.usefixtures("template")
async def test_a_schedule_that_becomes_due_is_fired_without_a_job(
    database_url: str, oracle: Oracle
) -> None:
    """A process learns of it, and of a rejected one, from the statement of its recovery.

    Jobs by which processes of the previous release wake each other are deleted.
    """
    await oracle.rows(
        """INSERT INTO procrastinate_jobs (queue_name, task_name, queueing_lock, args, scheduled_at)
        VALUES ('schedules', 'fire_schedule', 'schedule/default/s1/1', '{}', '2999-01-01')"""
    )
    await copy(oracle, "default", 1, 1)
    await oracle.rows("UPDATE schedules SET cron = '* * * * *' WHERE name = 's1'")
    worker = WorkerSettings(heartbeat_seconds=0.1)
    async with open_tenants(database_url, executes=True, worker=worker):
        for error in (None, "The run queue is full."):
            await oracle.rows(
                """UPDATE schedules SET next_at = date_trunc('second', now()) + interval '1 second',
                last_at = NULL, last_error = %s WHERE name = 's1'""",
                error,
            )
            await eventually(lambda: oracle.value(LAST_AT))
        jobs = "SELECT count(*) = 0 FROM procrastinate_jobs WHERE queue_name = 'schedules'"
        await eventually(lambda: oracle.value(jobs))


@pytest.mark.usefixtures("template")
async def test_stored_schedules_that_are_not_due_are_not_read(
    stores: Stores, oracle: Oracle, database_url: str
) -> None:
    """The searches for the next and for due schedules read a few blocks among 10,000."""
    from caseworker.features.schedules import due_runs

    await copy(oracle, "many", 1, 10_000)
    await oracle.rows("VACUUM ANALYZE schedules")
    statements = (
        *(due_runs.NEXT_DUE, due_runs.RETRY_DUE),
        *(due_runs._BATCH, due_runs._DUE_ALONE, due_runs._REJECTED),
    )
    async with open_oracle(database_url) as reader:
        for statement in statements:
            parameters = due_runs._FIRST if statement is due_runs._BATCH else ()
            explained = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement}".encode()
            cursor = await reader.connection.execute(explained, parameters or None)
            (row,) = await cursor.fetchall()
            plan = row["QUERY PLAN"][0]["Plan"]
            assert plan["Shared Hit Blocks"] + plan["Shared Read Blocks"] < 20, plan
