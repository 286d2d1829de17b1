"""The queue worker is always woken, and it gets no job without a free slot."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import procrastinate
import pytest
from procrastinate import PsycopgConnector
from procrastinate.jobs import Notification

from caseworker.platform.postgres.connections import driver_url
from caseworker.runs.execute.queue import CapacityAwareJobManager, take_jobs
from caseworker.runs.postgres.queue_jobs import QUEUE
from tests.integration.queue.world import QUIET
from tests.support.stores import new_run, open_oracle, open_stores

WORKERS = "SELECT count(*) FROM procrastinate_workers"


class HookedConnector(PsycopgConnector):
    """Runs a hook between an answer of the database and its arrival, or before a command."""

    before_row: Callable[[], Awaitable[None]] | None = None
    before_rows: Callable[[], Awaitable[None]] | None = None
    before_command: Callable[[], Awaitable[None]] | None = None

    async def execute_query_one_async(self, query: Any, **arguments: Any) -> dict[str, Any]:
        answer: dict[str, Any] = await super().execute_query_one_async(query, **arguments)
        if self.before_row is not None:
            hook, self.before_row = self.before_row, None
            await hook()
        return answer

    async def execute_query_all_async(self, query: Any, **arguments: Any) -> list[dict[str, Any]]:
        answer: list[dict[str, Any]] = await super().execute_query_all_async(query, **arguments)
        if self.before_rows is not None:
            hook, self.before_rows = self.before_rows, None
            await hook()
        return answer

    async def execute_query_async(self, query: Any, **arguments: Any) -> None:
        if self.before_command is not None:
            hook, self.before_command = self.before_command, None
            await hook()
        await super().execute_query_async(query, **arguments)


@asynccontextmanager
async def opened(
    url: str, *, has_free_slots: Callable[[], bool] = lambda: True
) -> AsyncIterator[tuple[HookedConnector, CapacityAwareJobManager, int]]:
    connector = HookedConnector(conninfo=driver_url(url), min_size=1, max_size=1)
    await connector.open_async()
    try:
        jobs = CapacityAwareJobManager(connector, has_free_slots=has_free_slots)
        yield connector, jobs, await jobs.register_worker()
    finally:
        await connector.close_async()


async def test_a_job_that_comes_while_the_answer_is_on_its_way_is_found(database_url: str) -> None:
    """The query missed the job, and its notification arrives before the answer of the query."""
    async with open_stores(database_url) as stores, opened(database_url) as (hooked, jobs, worker):

        async def announce_a_run() -> None:
            await stores.runs.accept(new_run("case-1"), worker_id=None)
            await jobs.wake()

        hooked.before_rows = announce_a_run
        job = await jobs.fetch_job([QUEUE], worker)

        assert job is not None
        assert job.task_kwargs == {"tenant": "default", "run_id": "case-1"}


async def test_an_empty_queue_is_asked_once(database_url: str) -> None:
    """No notification arrived, so there is no reason to query again."""
    async with opened(database_url) as (_, jobs, worker):
        assert await jobs.fetch_job([QUEUE], worker) is None


async def test_without_room_no_job_is_taken(database_url: str) -> None:
    """The job stays in the queue for other workers, and the refusal is recorded."""
    room = [False]
    async with (
        open_stores(database_url) as stores,
        opened(database_url, has_free_slots=lambda: room[0]) as (_, jobs, worker),
    ):
        await stores.runs.accept(new_run("case-1"), worker_id=None)
        assert await jobs.fetch_job([QUEUE], worker) is None
        assert jobs.refused.is_set()

        room[0] = True
        assert await jobs.fetch_job([QUEUE], worker) is not None


async def test_a_wake_up_reaches_the_worker(database_url: str) -> None:
    """A wake-up works like a notification; before the worker listens, it polls once."""
    heard: list[str] = []

    async def hear(*, channel: str, notification: Notification) -> None:
        heard.append(notification["type"])

    async with opened(database_url) as (_, jobs, _worker):
        await jobs.wake()
        listening = jobs.listen_for_jobs(on_notification=hear)
        listening.send(None)  # until it has nothing to do but wait
        await jobs.wake()
        listening.close()

    assert heard == ["job_inserted", "job_inserted"]


@pytest.mark.parametrize("moment", ["registers", "unregisters"])
async def test_a_worker_that_is_cancelled_while_it_registers_or_unregisters_leaves_no_row(
    database_url: str, moment: str
) -> None:
    """The worker is cancelled again while it stops, as at the end of a process."""
    looked, held, released = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        held.set()
        await released.wait()

    connector = HookedConnector(conninfo=driver_url(database_url), min_size=1, max_size=2)
    app = procrastinate.App(connector=connector)
    app.job_manager = CapacityAwareJobManager(connector, has_free_slots=lambda: True, looked=looked)
    async with open_oracle(database_url) as oracle, app.open_async():
        if moment == "registers":
            connector.before_row = hold
        else:
            connector.before_command = hold
        working = asyncio.create_task(take_jobs(app, [QUEUE], at_once=1, times=QUIET))
        if moment == "unregisters":
            await looked.wait()
            working.cancel()
        await held.wait()
        assert await oracle.value(WORKERS) == 1

        for _ in range(2):
            working.cancel()
            await asyncio.sleep(0)
        released.set()
        with pytest.raises(asyncio.CancelledError):
            await working

        assert await oracle.value(WORKERS) == 0
