"""Jobs beside runs: one tenant's slow ones do not keep those of others waiting."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import procrastinate
import pytest
from procrastinate.jobs import Job

from app.adapters.postgres.dispatch import ServiceJob
from app.adapters.postgres.engines import transaction
from app.adapters.queue.background import BackgroundQueue, BackgroundWorker, SharedJobManager, Task
from app.adapters.queue.worker import QueueTimes
from tests.support.limits import pool_sizes
from tests.support.stores import Oracle, Stores, eventually

PLACES = 8
TIMES = QueueTimes(poll=0.2, heartbeat=10, stale=60)


@asynccontextmanager
async def working(url: str, task: Task) -> AsyncIterator[None]:
    """Work on the jobs of the queue while the block does."""
    worker = BackgroundWorker(
        url=url,
        queues={"errands": BackgroundQueue(tasks={"errand": task}, at_once=PLACES)},
        times=TIMES,
        patience=pool_sizes().patience,
    )
    working = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        working.cancel()
        await asyncio.wait({working})


async def defer(stores: Stores, tenant: str, count: int, task: str = "errand") -> None:
    async with transaction(stores.engines.work) as connection:
        for number in range(count):
            job = ServiceJob(
                queue="errands",
                task=task,
                lock=f"{tenant}/{task}/{number}",
                arguments={"tenant": tenant, "number": number},
                at=None,
            )
            await stores.dispatch.defer_job(connection, job)


async def test_a_tenant_whose_jobs_hang_delays_no_other(
    database_url: str, stores: Stores, oracle: Oracle
) -> None:
    """It gets most places, the others the rest at once; in the end each job was done once."""
    begun, done = Counter[str](), Counter[tuple[str, int]]()
    go_on = asyncio.Event()

    async def errand(tenant: str, number: int) -> None:
        begun[tenant] += 1
        if tenant == "slow":
            await go_on.wait()
        done[tenant, number] += 1

    async def put_back() -> bool:
        held = await oracle.value("SELECT count(*) FROM procrastinate_jobs WHERE attempts > 0")
        return bool(held)

    async def all_done(count: int = 60) -> bool:
        return len(done) >= count

    await defer(stores, "slow", 40)
    async with working(database_url, errand):
        await eventually(put_back)
        await defer(stores, "quick", 20)
        await eventually(lambda: all_done(20))
        assert (begun["slow"], begun["quick"]) == (PLACES * 3 // 4, 20)
        assert {tenant for tenant, _ in done} == {"quick"}
        go_on.set()
        await eventually(all_done)

    assert set(done.values()) == {1}
    assert await oracle.value("SELECT count(*) FROM procrastinate_jobs") == 0


async def test_jobs_that_nobody_knows_take_no_place_for_good(
    database_url: str, stores: Stores, oracle: Oracle
) -> None:
    """A later release may have left them: they end, and others are done."""
    done = Counter[int]()

    async def errand(tenant: str, number: int) -> None:
        done[number] += 1

    async def all_done() -> bool:
        return len(done) == 1

    await defer(stores, "a", 3 * PLACES, task="unknown")
    await defer(stores, "a", 1)
    async with working(database_url, errand):
        await eventually(all_done)


async def test_a_job_that_is_put_back_gives_way_to_one_like_it(
    database_url: str, stores: Stores, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it was looked at, another job for the same work may have come."""
    app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=database_url))
    jobs = SharedJobManager(app.connector, {"errands": BackgroundQueue(tasks={}, at_once=4)})
    retried = list[int | None]()
    retry_job = jobs.retry_job

    async def retry_after_another(job: Job, **more: Any) -> None:
        if not retried:
            await defer(stores, "a", 4)
        retried.append(job.id)
        await retry_job(job, **more)

    monkeypatch.setattr(jobs, "retry_job", retry_after_another)
    await defer(stores, "a", 4)
    async with app.open_async():
        worker_id = await jobs.register_worker()
        begun = [await jobs.fetch_job(None, worker_id) for _ in range(4)]

    assert [job is not None for job in begun] == [True, True, True, False]
    waiting = await oracle.rows(
        "SELECT id, queueing_lock FROM procrastinate_jobs WHERE status = 'todo'"
        " AND scheduled_at > now() - interval '1 hour' ORDER BY queueing_lock"
    )
    assert [row["queueing_lock"] for row in waiting] == [f"a/errand/{each}" for each in range(4)]
    assert waiting[3]["id"] in retried[1:]
