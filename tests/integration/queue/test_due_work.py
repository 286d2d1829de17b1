"""Recovery finds work that no process was notified of, with one statement."""

import asyncio
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from psycopg import AsyncConnection

from caseworker.features.background_queue import BackgroundQueue, overdue_search, rescue_jobs
from caseworker.platform.errors import StoreUnavailableError
from caseworker.platform.postgres.engines import transaction
from caseworker.runs.postgres.queue_jobs import QueuedJob, defer
from caseworker.runs.recover.heartbeat import Search, next_job
from tests.integration.queue.stale import KEY, StaleRuns
from tests.integration.queue.world import HoldingExecutor, working
from tests.support.stores import new_run


async def test_a_queued_run_without_a_notification_is_claimed_after_the_next_look(
    database_url: str, stale_runs: StaleRuns
) -> None:
    """The job was lost too, and polling is off."""
    await stale_runs.stores.runs.accept(new_run("case-1"), worker_id=None)
    await stale_runs.oracle.rows("DELETE FROM procrastinate_jobs")
    executor = HoldingExecutor()
    async with working(database_url, stale_runs.stores, executor) as worker:
        await worker.looked.wait()
        await stale_runs.recovery(runs_due=worker.due).recover(thorough=False)
        await executor.has(KEY)


@pytest.mark.parametrize("queue", ["webhooks", "unknown"])
async def test_a_queue_is_woken_when_its_next_job_may_start(
    stale_runs: StaleRuns, queue: str
) -> None:
    """A job that starts later than the next look, or that is in an unknown queue, wakes none."""
    jobs = Search(next_job(["webhooks"]))
    recovery = stale_runs.recovery(interval_seconds=1.0, searches=[jobs])
    soon, late = (datetime.now(UTC) + timedelta(seconds=each) for each in (0.01, 3600))
    await _add_job(stale_runs, "webhooks", late)
    await recovery.recover(thorough=False)
    assert not jobs.due.is_set()

    await _add_job(stale_runs, queue, soon)
    await recovery.recover(thorough=False)
    if queue == "webhooks":
        async with asyncio.timeout(150):
            await jobs.due.wait()
        assert datetime.now(UTC) >= soon
    assert not recovery.runs_due.is_set()


@pytest.mark.parametrize(("overdue_seconds", "found"), [(6, True), (4, False)])
async def test_lost_jobs_are_replaced_only_for_overdue_work(
    stale_runs: StaleRuns, overdue_seconds: int, found: bool
) -> None:
    """The statement of recovery reads when the first work of a queue was due."""
    rescued = asyncio.Queue[float]()

    async def rescue(late_seconds: float) -> int:
        rescued.put_nowait(late_seconds)
        return 1

    due = f"SELECT -{overdue_seconds}"
    queue = BackgroundQueue(tasks={}, at_once=1, next_due=due, rescue=rescue)
    search, other = overdue_search(queue, 5.0), Search("SELECT 0.0")
    recovery = stale_runs.recovery(interval_seconds=0.5, searches=[search, other])
    keeping = asyncio.create_task(search.run_when_due(partial(rescue_jobs, "errands", queue, 5.0)))
    async with asyncio.timeout(150):
        await recovery.recover(thorough=False)
        await other.due.wait()
        if found:
            assert await rescued.get() == 5.0
    keeping.cancel()
    await asyncio.wait({keeping})

    assert rescued.empty()


async def test_the_statement_that_looks_for_work_is_planned_once(stale_runs: StaleRuns) -> None:
    """Planning it takes several times as long as executing it."""
    recovery = stale_runs.recovery(searches=[Search(next_job(["webhooks"]))])
    for _ in range(10):
        await recovery.recover(thorough=False)

    async def plans(connection: AsyncConnection[Any]) -> Any:
        counts = "SELECT generic_plans, custom_plans FROM pg_prepared_statements"
        return await (await connection.execute(counts)).fetchone()

    assert await stale_runs.stores.engines.look.use(plans) == {
        "generic_plans": 10,
        "custom_plans": 0,
    }


async def test_work_that_fails_in_an_outage_is_done_when_it_is_found_again() -> None:
    """The loop ends neither then nor while work stays due."""
    search, calls = Search("SELECT 0.0"), asyncio.Queue[None]()

    async def work() -> None:
        calls.put_nowait(None)
        raise StoreUnavailableError

    keeping = asyncio.create_task(search.run_when_due(work))
    async with asyncio.timeout(150):
        for _ in range(2):
            search.due.set()
            await calls.get()
    assert not keeping.done()
    keeping.cancel()
    await asyncio.wait({keeping})


async def _add_job(stale_runs: StaleRuns, queue: str, at: datetime) -> None:
    lock = f"{queue} at {at}"
    job = QueuedJob(queue=queue, task="work", lock=lock, arguments={}, at=at)
    async with transaction(stale_runs.stores.engines.work) as connection:
        await defer(connection, [job])
