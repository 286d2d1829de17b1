"""Background jobs: slow jobs of one tenant do not delay the jobs of other tenants."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from caseworker.platform.postgres.engines import transaction
from caseworker.runs.execute.queue.background import (
    BackgroundQueue,
    BackgroundWorker,
    Task,
)
from caseworker.runs.execute.queue.worker import QueueTimes
from caseworker.runs.postgres.queue_jobs import QueuedJob
from caseworker.runs.postgres.queue_jobs import defer as defer_jobs
from tests.support.limits import pool_sizes
from tests.support.stores import Oracle, Stores, eventually

PLACES = 8
TIMES = QueueTimes(poll=0.2, heartbeat=10, stale=60)


async def none_lost(late_seconds: float) -> int:
    return 0


@asynccontextmanager
async def working(url: str, task: Task) -> AsyncIterator[None]:
    """Process the jobs of the queue during the block."""
    worker = BackgroundWorker(
        url=url,
        queues={
            name: BackgroundQueue(
                tasks={task_name: task}, at_once=at_once, next_due="SELECT NULL", rescue=none_lost
            )
            for name, task_name, at_once in (("errands", "errand", PLACES), ("chimes", "chime", 1))
        },
        times=TIMES,
        patience=pool_sizes().patience,
    )
    working = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        working.cancel()
        await asyncio.wait({working})


async def defer(
    stores: Stores, tenant: str, count: int, task: str = "errand", queue: str = "errands"
) -> None:
    async with transaction(stores.engines.work) as connection:
        for number in range(count):
            job = QueuedJob(
                queue=queue,
                task=task,
                lock=f"{tenant}/{task}/{number}",
                arguments={"tenant": tenant, "number": number},
                at=None,
            )
            await defer_jobs(connection, [job])


async def test_a_tenant_whose_jobs_hang_delays_no_other(
    database_url: str, stores: Stores, oracle: Oracle
) -> None:
    """The slow tenant gets most slots, other tenants use the rest, and each job runs once."""
    begun, done = Counter[str](), Counter[tuple[str, int]]()
    go_on = asyncio.Event()

    async def errand(tenant: str, number: int) -> None:
        begun[tenant] += 1
        if tenant == "slow":
            await go_on.wait()
        done[tenant, number] += 1

    async def all_begun() -> bool:
        return begun["slow"] == PLACES * 3 // 4

    async def all_done(count: int = 60) -> bool:
        return len(done) >= count

    await defer(stores, "slow", 40)
    async with working(database_url, errand):
        await eventually(all_begun)
        await defer(stores, "quick", 20)
        await eventually(lambda: all_done(20))
        assert await all_begun()
        assert {tenant for tenant, _ in done} == {"quick"}
        go_on.set()
        await eventually(all_done)

    assert set(done.values()) == {1}
    assert await oracle.value("SELECT count(*) FROM procrastinate_jobs") == 0


async def test_a_queue_whose_places_are_all_held_delays_no_other_queue(
    database_url: str, stores: Stores
) -> None:
    """The worker skips jobs of the full queue to reach those of another queue."""
    begun = Counter[str]()
    go_on = asyncio.Event()

    async def work(tenant: str, number: int) -> None:
        begun[tenant] += 1
        if tenant != "clock":
            await go_on.wait()

    async def all_begun(tenant: str, count: int) -> bool:
        return begun[tenant] == count

    for tenant in ("a", "b"):
        await defer(stores, tenant, 20)
    await defer(stores, "clock", 5, "chime", "chimes")
    async with working(database_url, work):
        await eventually(lambda: all_begun("clock", 5))
        await eventually(lambda: all_begun("b", PLACES // 4))
        assert begun["a"] == PLACES * 3 // 4
        go_on.set()
        await eventually(lambda: all_begun("b", 20))


async def test_jobs_that_nobody_knows_take_no_place_for_good(
    database_url: str, stores: Stores, oracle: Oracle
) -> None:
    """Unknown jobs, such as those of a later release, end and leave their slots."""
    done = Counter[int]()

    async def errand(tenant: str, number: int) -> None:
        done[number] += 1

    async def all_done() -> bool:
        return len(done) == 1

    await defer(stores, "a", 3 * PLACES, task="unknown")
    await defer(stores, "a", 1)
    async with working(database_url, errand):
        await eventually(all_done)
