"""A process claims queued runs while it has slots, and is notified of new ones."""

import asyncio
from typing import Any

import pytest

from caseworker.platform.errors import StoreUnavailableError
from caseworker.runs.execute.postgres.runs import PostgresRuns
from caseworker.runs.execute.queue.worker import QueueWorker
from caseworker.runs.run import Run, RunKey, RunStatus
from tests.integration.queue.world import QUIET, HoldingExecutor, working
from tests.support.database import proxied, upstream_of
from tests.support.fault_proxy import FaultProxy
from tests.support.stores import (
    CANCEL_REQUEST,
    Oracle,
    eventually,
    new_run,
    open_oracle,
    open_stores,
)

KEY = RunKey("default", "case-1")
JOBS = "SELECT count(*) FROM procrastinate_jobs"


def key_of(number: int) -> RunKey:
    return RunKey("default", f"case-{number}")


async def ready(worker: QueueWorker, oracle: Oracle) -> None:
    """Wait until a worker has polled for jobs and listens."""

    async def listens() -> bool:
        query = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%%'"
        return bool(await oracle.value(query))

    await worker.looked.wait()
    await eventually(listens)


async def test_a_queued_run_is_claimed_and_begun(database_url: str) -> None:
    """The run may be queued before or after the worker starts, and its job is deleted."""
    executor = HoldingExecutor()
    async with open_stores(database_url) as stores, open_oracle(database_url) as oracle:
        await stores.runs.accept(new_run("case-1"), worker_id=None)
        async with working(database_url, stores, executor):
            first = await executor.has(KEY)
            await stores.runs.accept(new_run("case-2"), worker_id=None)
            second = await executor.has(key_of(2))

            assert (first.status, first.worker_id) == (RunStatus.RUNNING, "w1")
            assert second.fence == 1

            async def no_jobs() -> bool:
                return int(await oracle.value(JOBS)) == 0

            await eventually(no_jobs)


async def test_every_run_is_announced(database_url: str) -> None:
    """Polling is disabled: each of a hundred runs is queued after the previous one was claimed."""
    executor = HoldingExecutor()
    async with open_stores(database_url) as stores, working(database_url, stores, executor):
        for number in range(100):
            await stores.runs.accept(new_run(f"case-{number}"), worker_id=None)
            await executor.has(key_of(number))


async def test_the_last_free_slot_takes_a_run(database_url: str) -> None:
    """A process with a single slot claims a run that is queued after its start."""
    executor = HoldingExecutor(slots=1)
    async with (
        open_stores(database_url) as stores,
        open_oracle(database_url) as oracle,
        working(database_url, stores, executor) as worker,
    ):
        await ready(worker, oracle)
        await stores.runs.accept(new_run("case-1"), worker_id=None)
        await executor.has(KEY)


async def test_runs_are_shared_among_processes(database_url: str) -> None:
    """Each run is claimed by one of the processes."""
    one, two = HoldingExecutor("w1"), HoldingExecutor("w2")
    async with (
        open_stores(database_url) as stores,
        working(database_url, stores, one),
        working(database_url, stores, two),
    ):
        for number in range(40):
            await stores.runs.accept(new_run(f"case-{number}"), worker_id=None)

        async def all_taken() -> bool:
            return len(one.active) + len(two.active) == 40

        await eventually(all_taken)
        assert not one.active & two.active


async def test_a_claim_that_fails_is_repeated(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job of the run is gone, so nothing else would claim it soon."""
    executor, failures = HoldingExecutor(), [StoreUnavailableError()]
    async with open_stores(database_url) as stores, working(database_url, stores, executor):
        await stores.runs.accept(new_run("case-1"), worker_id=None)
        await executor.has(KEY)
        claim = PostgresRuns.claim

        async def failing(*arguments: Any, **options: Any) -> Run | None:
            if failures:
                raise failures.pop()
            return await claim(*arguments, **options)

        monkeypatch.setattr(PostgresRuns, "claim", failing)
        await stores.runs.accept(new_run("case-2"), worker_id=None)
        await executor.has(key_of(2))


async def test_a_run_whose_job_is_lost_is_claimed_at_the_start(database_url: str) -> None:
    """An earlier process may have taken the job without claiming the run."""
    executor = HoldingExecutor()
    async with open_stores(database_url) as stores, open_oracle(database_url) as oracle:
        await stores.runs.accept(new_run("case-1"), worker_id=None)
        await oracle.rows("DELETE FROM procrastinate_jobs")
        async with working(database_url, stores, executor):
            await executor.has(KEY)


async def test_a_full_process_leaves_jobs_to_others(database_url: str) -> None:
    """A full process holds back no job, and claims the next one as soon as it has a slot."""
    full, other = HoldingExecutor("w1", slots=1), HoldingExecutor("w2")
    async with open_stores(database_url) as stores, open_oracle(database_url) as oracle:
        async with working(database_url, stores, full):
            await stores.runs.accept(new_run("case-0"), worker_id=None)
            await full.has(key_of(0))
            for number in range(1, 4):
                await stores.runs.accept(new_run(f"case-{number}"), worker_id=None)
            waiting = "SELECT count(*) FROM procrastinate_jobs WHERE status = 'todo'"
            assert await oracle.value(waiting) >= 3  # the first run may be claimed without its job

            full.let_end(key_of(0))
            await full.has(key_of(1))
            async with working(database_url, stores, other):
                await other.has(key_of(2))
                await other.has(key_of(3))

        assert len(full.active) == 1


async def test_a_full_process_takes_no_job_of_a_run_that_another_can_claim(
    database_url: str,
) -> None:
    """Both processes are notified of each run, but the full one leaves all jobs to the other."""
    full, other = HoldingExecutor("w1", slots=1), HoldingExecutor("w2")
    async with open_stores(database_url) as stores, working(database_url, stores, full):
        await stores.runs.accept(new_run("case-0"), worker_id=None)
        await full.has(key_of(0))
        async with working(database_url, stores, other):
            for number in range(1, 41):
                await stores.runs.accept(new_run(f"case-{number}"), worker_id=None)
                await other.has(key_of(number))

        assert list(full.active) == [key_of(0)]


async def test_a_run_that_was_stopped_while_queued_is_not_begun(database_url: str) -> None:
    """The run's job finds no run to claim."""
    executor = HoldingExecutor()
    async with open_stores(database_url) as stores:
        await stores.runs.accept(new_run("case-1"), worker_id=None)
        await stores.runs.cancel(KEY, CANCEL_REQUEST)
        await stores.runs.accept(new_run("case-2"), worker_id=None)
        async with working(database_url, stores, executor):
            await executor.has(key_of(2))

        assert list(executor.active) == [key_of(2)]


@pytest.mark.parametrize("kind", ["cut", "refused for a while"])
async def test_the_worker_comes_back_with_the_database(database_url: str, kind: str) -> None:
    """Runs queued during the outage are claimed, and later ones are announced again."""
    executor = HoldingExecutor()
    async with (
        FaultProxy(upstream_of(database_url)) as proxy,
        open_stores(database_url) as stores,
        open_oracle(database_url) as oracle,
        working(proxied(database_url, proxy), stores, executor) as worker,
    ):
        await ready(worker, oracle)
        proxy.refuse(kind != "cut")
        proxy.cut()
        await stores.runs.accept(new_run("case-1"), worker_id=None)
        if kind != "cut":

            async def refused() -> bool:
                return proxy.counts.refused > 1

            await eventually(refused)
            proxy.refuse(False)
        await executor.has(KEY)
        await stores.runs.accept(new_run("case-2"), worker_id=None)
        await executor.has(key_of(2))

        assert proxy.counts.cut > 0


async def test_a_worker_that_is_stopped_leaves_no_trace(database_url: str) -> None:
    """Neither its row nor a connection remains."""
    async with open_stores(database_url) as stores, open_oracle(database_url) as oracle:
        async with working(database_url, stores, HoldingExecutor(), QUIET) as worker:
            await ready(worker, oracle)

        async def gone() -> bool:
            query = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%%'"
            return int(await oracle.value(query)) == 0

        await eventually(gone)
        assert await oracle.value("SELECT count(*) FROM procrastinate_workers") == 0


async def test_a_worker_that_cannot_start_is_started_again(database_url: str) -> None:
    """The database may start later than the process."""
    executor = HoldingExecutor()
    async with FaultProxy(upstream_of(database_url)) as proxy, open_stores(database_url) as stores:
        proxy.refuse()
        async with working(proxied(database_url, proxy), stores, executor):

            async def refused() -> bool:
                return proxy.counts.refused > 0

            await eventually(refused)
            await stores.runs.accept(new_run("case-1"), worker_id=None)
            proxy.refuse(False)
            async with asyncio.timeout(150):
                await executor.has(KEY)
