"""Recovery finds work that no process was notified of, with one statement."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from caseworker.platform.postgres.engines import transaction
from caseworker.runs.postgres.dispatch import QueuedJob, defer
from tests.integration.queue.stale import KEY, StaleRuns
from tests.integration.queue.world import HoldingExecutor, working
from tests.support.stores import new_run


async def test_a_queued_run_without_a_notification_is_claimed_after_the_next_look(
    database_url: str, world: StaleRuns
) -> None:
    """The job was lost too, and polling is off."""
    await world.stores.runs.accept(new_run("case-1"), worker_id=None)
    await world.oracle.rows("DELETE FROM procrastinate_jobs")
    executor = HoldingExecutor()
    async with working(database_url, world.stores, executor) as worker:
        await worker.looked.wait()
        await world.recovery(runs_due=worker.due).recover(thorough=False)
        await executor.has(KEY)


@pytest.mark.parametrize("queue", ["webhooks", "unknown"])
async def test_a_queue_is_woken_when_its_next_job_may_start(world: StaleRuns, queue: str) -> None:
    """A job that starts later than the next look, or that is in an unknown queue, wakes none."""
    recovery = world.recovery(interval_seconds=1.0, queues=["webhooks"])
    soon, late = (datetime.now(UTC) + timedelta(seconds=each) for each in (0.01, 3600))
    await _add_job(world, "webhooks", late)
    await recovery.recover(thorough=False)
    assert not recovery.jobs_due.is_set()

    await _add_job(world, queue, soon)
    await recovery.recover(thorough=False)
    if queue == "webhooks":
        async with asyncio.timeout(150):
            await recovery.jobs_due.wait()
        assert datetime.now(UTC) >= soon
    assert not recovery.runs_due.is_set()


async def _add_job(world: StaleRuns, queue: str, at: datetime) -> None:
    lock = f"{queue} at {at}"
    job = QueuedJob(queue=queue, task="work", lock=lock, arguments={}, at=at)
    async with transaction(world.stores.engines.work) as connection:
        await defer(connection, [job])
