"""Followers are notified about events that other processes store, without their help."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime

import pytest
from psycopg import OperationalError

from caseworker.runs.execute.postgres.event_watch import WATCH_SECONDS, EventWatch
from caseworker.runs.ports import JournalWrite
from caseworker.runs.run import EventRecord, RunKey
from tests.integration.queue.world import HoldingExecutor
from tests.support.limits import patience
from tests.support.memory_runs import MemoryRuns
from tests.support.stores import Oracle, Stores, new_run, open_stores

KEY, HERE = RunKey("default", "elsewhere"), RunKey("default", "here")
WATCHES = """SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND query LIKE '%%newest.seq%%'
"""


async def executing(*keys: RunKey) -> HoldingExecutor:
    """Return an executor that executes these runs."""
    executor, runs = HoldingExecutor(), MemoryRuns()
    for key in keys:
        run = (await runs.accept(new_run(key.run_id), worker_id="w1")).run
        executor.start(run, permitted_at=0)
    return executor


@asynccontextmanager
async def watched(
    url: str, stores: Stores, executor: HoldingExecutor | None = None
) -> AsyncIterator[asyncio.Task[None]]:
    """Watch events for the followers of ``stores``, whose process executes some runs."""
    notifier = stores.journal.notifier
    here = executor or await executing(HERE)
    watch = EventWatch(url, patience(), notifier=notifier, executing=here)
    task = asyncio.create_task(watch.run())
    try:
        yield task
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError, OperationalError):
            await task


async def write(other: Stores, key: RunKey, seq: int) -> None:
    event = EventRecord(seq=seq, ts=datetime(2026, 1, 1, tzinfo=UTC), type="text.delta")
    await other.journal.write(JournalWrite(key=key, fence=1, events=(event,)))


async def test_followers_hear_of_each_write_of_another_process(
    database_url: str, stores: Stores
) -> None:
    """Each write notifies once, except for runs executed here and for runs of other tenants."""
    async with open_stores(database_url) as other, watched(database_url, stores):
        for name in ("elsewhere", "here", "quiet"):
            await other.runs.accept(new_run(name), worker_id="w2")
        with (
            stores.runs.listening(KEY) as told,
            stores.runs.listening(RunKey("b", KEY.run_id)) as of_another_tenant,
            stores.runs.listening(HERE) as here,
            stores.runs.listening(RunKey("default", "quiet")) as quiet,
        ):
            async with asyncio.timeout(150):
                for seq in (1, 2, 3):
                    await write(other, HERE, seq)
                    await write(other, KEY, seq)
                    await told.wait()
                    told.clear()
            await asyncio.sleep(4 * WATCH_SECONDS)
            assert not told.is_set()
            assert not of_another_tenant.is_set()
            assert not here.is_set()
            assert not quiet.is_set()


async def test_a_run_that_is_not_executed_here_any_more_is_watched(
    database_url: str, stores: Stores
) -> None:
    """The watch notices the change even if the set of followers stays the same."""
    executor = await executing(KEY, HERE)
    async with (
        open_stores(database_url) as other,
        watched(database_url, stores, executor),
    ):
        for name in ("elsewhere", "here", "quiet"):
            await other.runs.accept(new_run(name), worker_id="w2")
            await write(other, RunKey("default", name), 1)
        with (
            stores.runs.listening(KEY) as told,
            stores.runs.listening(RunKey("default", "quiet")) as quiet,
        ):
            async with asyncio.timeout(150):
                await quiet.wait()
                assert not told.is_set()
                executor.let_end(KEY)
                await told.wait()


@pytest.mark.guarantee(12)
async def test_one_who_comes_later_misses_nothing(database_url: str, stores: Stores) -> None:
    """The watch may have seen an event before a new follower reads the run."""
    async with open_stores(database_url) as other, watched(database_url, stores):
        await other.runs.accept(new_run("elsewhere"), worker_id="w2")
        with stores.runs.listening(KEY) as told:
            await write(other, KEY, 1)
            async with asyncio.timeout(150):
                await told.wait()
            with stores.runs.listening(KEY) as later:
                page = await stores.runs.events(KEY, after=0, limit=10)
                assert page is not None
                assert [each.seq for each in page.events] == [1]
                await write(other, KEY, 2)
                async with asyncio.timeout(150):
                    await later.wait()


async def test_nothing_is_asked_while_nobody_follows(
    database_url: str, stores: Stores, oracle: Oracle
) -> None:
    """The watch opens no connection before a run of another process is followed."""
    async with watched(database_url, stores):
        with stores.runs.listening(HERE):
            await asyncio.sleep(0.2)
            assert await oracle.value(WATCHES) == 0


async def test_a_lost_connection_is_somebody_elses_to_make_again(
    database_url: str, stores: Stores, oracle: Oracle
) -> None:
    """The watch ends, and its supervisor restarts it."""
    await stores.runs.accept(new_run("elsewhere"), worker_id="w2")
    with stores.runs.listening(KEY) as told:
        await write(stores, KEY, 1)
        told.clear()
        for _ in range(2):
            async with watched(database_url, stores) as task, asyncio.timeout(150):
                await told.wait()
                told.clear()
                ends = WATCHES.replace("count(*)", "pg_terminate_backend(pid)")
                await oracle.rows(ends)
                with pytest.raises(OperationalError):
                    await task
