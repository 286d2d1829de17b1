"""Runs of processes without heartbeats, and runs without a job."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from caseworker.platform.postgres.engines import transaction
from caseworker.runs.recover.failure_detector import Silent
from caseworker.runs.recover.postgres import (
    BATCH,
    any_worker_accepts_runs,
    list_workers,
    request_drain,
    take_lost,
)
from caseworker.runs.run import RunKey, RunStatus
from tests.integration.queue.stale import KEY, STALE, StaleRuns
from tests.integration.queue.world import HoldingExecutor, working
from tests.support.database import proxied, upstream_of
from tests.support.fault_proxy import FaultProxy
from tests.support.stores import (
    CANCEL_REQUEST,
    end_of,
    graph_with_calls,
    new_run,
    open_stores,
    records_of,
)


@pytest.mark.req("003/resume")
@pytest.mark.guarantee(10)
async def test_runs_of_a_silent_process_are_queued_again_with_a_job(stale_runs: StaleRuns) -> None:
    """Their active time is kept, and runs of a living process are left alone."""
    await stale_runs.beat("dead", seconds_ago=15)
    await stale_runs.beat("alive", seconds_ago=5)
    await stale_runs.claimed()
    await stale_runs.claimed("case-2", worker_id="alive")
    await stale_runs.age(seconds=45)

    assert await stale_runs.recover() == [KEY]
    recovered = await stale_runs.stored()
    assert (recovered.status, recovered.worker_id, recovered.fence) == (RunStatus.QUEUED, None, 1)
    assert recovered.active_seconds == pytest.approx(30, abs=2)
    assert (await stale_runs.stored(RunKey("default", "case-2"))).status is RunStatus.RUNNING
    assert await stale_runs.jobs() == ["default/case-1"]
    assert await stale_runs.oracle.rows("SELECT worker_id FROM workers") == [{"worker_id": "alive"}]
    assert await stale_runs.recover() == []

    again = await stale_runs.stores.runs.claim(KEY, "alive")
    assert again is not None
    assert (again.fence, again.attempts) == (2, 2)


async def test_a_run_that_waits_for_a_person_goes_on_by_itself_when_its_time_is_up(
    stale_runs: StaleRuns,
) -> None:
    """A waiting run has no owner, so none is lost; after its time it gets a job."""
    await stale_runs.beat("dead", seconds_ago=15)
    await stale_runs.claimed()
    waits = "UPDATE runs SET status = 'waiting', worker_id = NULL, queued_at = clock_timestamp()"
    await stale_runs.oracle.rows(f"{waits} + interval '1 hour'")
    assert await stale_runs.recover() == []
    assert (await stale_runs.stored()).status is RunStatus.WAITING

    await stale_runs.oracle.rows("UPDATE runs SET queued_at = clock_timestamp()")
    assert await stale_runs.recover() == [KEY]
    assert (await stale_runs.stored()).status is RunStatus.QUEUED


@pytest.mark.guarantee(21)
@pytest.mark.parametrize(("refuses", "seconds"), [(False, 3.0), (True, STALE)])
async def test_a_process_without_a_connection_is_dead_only_if_there_are_connections(
    database_url: str, stale_runs: StaleRuns, refuses: bool, seconds: float
) -> None:
    """A living process may have lost its connection and get no new one: too many clients."""
    await stale_runs.oracle.rows("INSERT INTO workers (worker_id) VALUES ('cut off')")
    await stale_runs.claimed(worker_id="cut off")
    async with (
        FaultProxy(upstream_of(database_url)) as proxy,
        open_stores(proxied(database_url, proxy)) as stores,
    ):
        looker = StaleRuns(stores, stale_runs.oracle)
        recovery = looker.recovery(interval_seconds=1.0)
        assert await recovery.recover() == []
        proxy.refuse(refuses)
        while not await recovery.recover():
            looker.now += recovery.interval_seconds / 2
    assert looker.now == pytest.approx(seconds, abs=1)
    assert (proxy.counts.refused > 0) is refuses


async def test_a_process_without_a_row_is_given_the_same_time(stale_runs: StaleRuns) -> None:
    """The process may have reconnected and accepted the run before its next heartbeat."""
    await stale_runs.claimed(worker_id="unknown")
    assert await stale_runs.recover() == []

    await stale_runs.age(seconds=STALE + 1)
    assert await stale_runs.recover() == [KEY]


async def test_a_process_that_left_in_order_loses_what_it_left_behind(
    stale_runs: StaleRuns,
) -> None:
    """Leaving removes the row of the process, so its runs are recovered as if it had died."""
    await stale_runs.beat("alive")
    await stale_runs.claimed(worker_id="alive")
    await stale_runs.age(seconds=STALE + 1)
    await stale_runs.stores.workers.leave("alive")

    assert await stale_runs.recover() == [KEY]


async def test_workers_are_listed_and_can_be_drained(stale_runs: StaleRuns) -> None:
    """The list shows silence and runs of each worker, and a draining worker claims no runs."""
    pool, long = stale_runs.stores.engines.work, 1e6
    await stale_runs.beat("dead", seconds_ago=60)
    await stale_runs.beat("alive")
    await stale_runs.claimed(worker_id="alive")

    workers = {each.worker_id: each for each in await list_workers(pool)}
    assert {name: each.runs for name, each in workers.items()} == {"dead": 0, "alive": 1}
    assert workers["dead"].silent_seconds - workers["alive"].silent_seconds > 50
    assert await any_worker_accepts_runs(pool, stale_seconds=long)
    assert not await request_drain(pool, "unknown")
    for name in workers:
        assert await request_drain(pool, name)
        assert (await stale_runs.stores.workers.beat(name)).draining
    assert not await any_worker_accepts_runs(pool, stale_seconds=long)
    assert None not in [each.drain_requested_at for each in await list_workers(pool)]


async def test_a_process_that_thaws_is_told_that_it_owns_nothing(stale_runs: StaleRuns) -> None:
    """The thawed process's late writes change nothing."""
    await stale_runs.beat("dead", seconds_ago=15)
    frozen = await stale_runs.claimed()
    await stale_runs.recover()

    beat = await stale_runs.stores.workers.beat("dead")
    assert beat.owned == frozenset()
    assert not (await stale_runs.stores.journal.finish(end_of(frozen))).done
    assert (await stale_runs.stored()).status is RunStatus.QUEUED


@pytest.mark.req("card/delete")
async def test_a_stop_survives_the_process_that_should_have_obeyed_it(
    database_url: str, stale_runs: StaleRuns
) -> None:
    """The next owner sees the request before it does anything."""
    await stale_runs.beat("dead", seconds_ago=15)
    await stale_runs.claimed()
    await stale_runs.stores.runs.cancel(KEY, CANCEL_REQUEST)
    await stale_runs.recover()
    executor = HoldingExecutor("alive")
    async with working(database_url, stale_runs.stores, executor):
        run = await executor.has(KEY)

    assert run.cancel_request is not None
    assert run.cancel_request.requested_by == "tester"


@pytest.mark.req("card/delete")
async def test_a_cancelled_run_of_a_dead_process_can_be_ended_at_once(
    stale_runs: StaleRuns,
) -> None:
    """The recovered run has a job, and each process can claim it to end it without a slot."""
    await stale_runs.beat("dead", seconds_ago=15)
    run = await stale_runs.claimed()
    graph = graph_with_calls("case-1")
    graph.begin_node("n000001", "llm", "plan")
    records = records_of(graph)
    await stale_runs.stores.runs.release(run, active_seconds=1, calls=records, counted=True)
    await stale_runs.stores.runs.claim(KEY, "dead")
    await stale_runs.recover()
    cancelled = await stale_runs.stores.runs.cancel(KEY, CANCEL_REQUEST)

    assert cancelled.run is not None
    assert cancelled.run.status is RunStatus.QUEUED
    assert len(await stale_runs.stores.runs.started_calls(KEY)) == 2
    claimed = await stale_runs.stores.runs.claim_stopped(KEY, "alive")
    assert claimed is not None
    assert claimed.cancel_request is not None


async def test_a_queued_run_whose_job_was_lost_gets_another(stale_runs: StaleRuns) -> None:
    """A run that waits for a slot gets none, however long it waits."""
    for name in ("case-1", "case-2"):
        await stale_runs.stores.runs.accept(new_run(name), worker_id=None)
    await stale_runs.oracle.rows(
        "DELETE FROM procrastinate_jobs WHERE queueing_lock LIKE '%%case-1'"
    )
    assert await stale_runs.recover() == []

    await stale_runs.age(seconds=STALE + 1)
    assert await stale_runs.recover() == [KEY]
    assert await stale_runs.jobs() == ["default/case-1", "default/case-2"]


@pytest.mark.parametrize("worker", ["silent", "pruned"])
async def test_a_job_that_a_lost_process_had_taken_is_replaced(
    stale_runs: StaleRuns, worker: str
) -> None:
    """The run was not claimed; only jobs of living workers are left alone."""
    await stale_runs.stores.runs.accept(new_run("case-1"), worker_id=None)
    await stale_runs.oracle.rows(
        """INSERT INTO procrastinate_workers (last_heartbeat)
           VALUES (now()), (now() - interval '1 hour')"""
    )
    living, silent = (
        row["id"] for row in await stale_runs.oracle.rows("SELECT id FROM procrastinate_workers")
    )
    await stale_runs.oracle.rows(
        """INSERT INTO procrastinate_jobs (queue_name, task_name, status, worker_id)
           VALUES ('runs', 't', 'doing', %s), ('webhooks', 't', 'doing', %s)""",
        living,
        silent,
    )
    await stale_runs.oracle.rows(
        """UPDATE procrastinate_jobs SET status = 'doing', worker_id = %s
           WHERE queueing_lock IS NOT NULL""",
        silent if worker == "silent" else None,
    )
    await stale_runs.age(seconds=STALE + 1)

    assert await stale_runs.recover() == [KEY]
    rows = await stale_runs.oracle.rows(
        "SELECT queue_name, status::text FROM procrastinate_jobs ORDER BY 1, 2"
    )
    assert [tuple(row.values()) for row in rows] == [
        ("runs", "doing"),
        ("runs", "todo"),
    ]


async def test_many_lost_runs_are_taken_in_several_transactions(stale_runs: StaleRuns) -> None:
    """One recovery takes all of them."""
    count = 2 * BATCH + 10
    await stale_runs.beat("dead", seconds_ago=15)
    async with asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(stale_runs.claimed(f"case-{number}"))

    assert len(await stale_runs.recover()) == count
    assert len(await stale_runs.jobs()) == count
    assert await stale_runs.oracle.value("SELECT count(*) FROM workers") == 0


async def test_two_recoveries_at_once_take_each_run_once(
    database_url: str, stale_runs: StaleRuns
) -> None:
    """Neither waits for the other, and no loss is counted twice."""
    async with AsyncExitStack() as stack:
        other = StaleRuns(
            await stack.enter_async_context(open_stores(database_url)), stale_runs.oracle
        )
        for round_number in range(5):
            await stale_runs.beat("dead", seconds_ago=15)
            async with asyncio.TaskGroup() as group:
                for number in range(20):
                    group.create_task(stale_runs.claimed(f"case-{round_number}-{number}"))
                    name = f"queued-{round_number}-{number}"
                    group.create_task(stale_runs.stores.runs.accept(new_run(name), worker_id=None))
            await stale_runs.oracle.rows("DELETE FROM procrastinate_jobs")
            await stale_runs.age(seconds=20)
            async with asyncio.TaskGroup() as group:
                looks = [group.create_task(each.recover()) for each in (stale_runs, other)]
            lost = [key for look in looks for key in look.result() if "case" in key.run_id]

            assert len(lost) == len(set(lost)) == 20
            assert len(await stale_runs.jobs()) == 40
            await stale_runs.oracle.rows("DELETE FROM runs")
            await stale_runs.oracle.rows("DELETE FROM procrastinate_jobs")


async def test_what_is_locked_is_left_for_the_next_look(stale_runs: StaleRuns) -> None:
    """Recovery skips locked runs and keeps the worker's row until all runs are recovered."""
    await stale_runs.beat("dead", seconds_ago=15)
    await stale_runs.claimed()
    await stale_runs.claimed("case-2")
    async with locked(stale_runs, "case-1"):
        assert await stale_runs.recover() == [RunKey("default", "case-2")]
        assert await stale_runs.oracle.value("SELECT count(*) FROM workers") == 1

    assert await stale_runs.recover() == [KEY]
    assert await stale_runs.oracle.value("SELECT count(*) FROM workers") == 0


async def test_a_process_that_beats_while_it_is_being_recovered_keeps_what_it_still_has(
    stale_runs: StaleRuns,
) -> None:
    """The process's heartbeat waits for the recovery and returns the remaining runs."""
    await stale_runs.beat("slow", seconds_ago=15)
    await stale_runs.claimed(worker_id="slow")
    await stale_runs.claimed("case-2", worker_id="slow")
    async with locked(stale_runs, "case-2"):
        async with transaction(stale_runs.stores.engines.work) as connection:
            taken = await take_lost(connection, await silent(stale_runs), **TAKING)
            beat = asyncio.create_task(stale_runs.stores.workers.beat("slow"))
            assert list(taken) == [KEY]
        owned = (await beat).owned

    assert owned == {RunKey("default", "case-2")}
    stale_runs.living = ("slow",)
    assert await stale_runs.recover() == []


async def test_a_recovery_that_dies_halfway_has_taken_nothing(stale_runs: StaleRuns) -> None:
    """The next recovery finds everything unchanged."""
    await stale_runs.beat("dead", seconds_ago=15)
    await stale_runs.claimed()
    async with transaction(stale_runs.stores.engines.work) as connection:
        assert list(await take_lost(connection, await silent(stale_runs), **TAKING)) == [KEY]
        await connection.rollback()

    assert (await stale_runs.stored()).status is RunStatus.RUNNING
    assert await stale_runs.recover() == [KEY]


async def test_a_process_recovers_runs_although_it_has_no_room_itself(
    database_url: str, stale_runs: StaleRuns
) -> None:
    """Another process may have a free slot."""
    full, free = HoldingExecutor("full", slots=0), HoldingExecutor("free")
    await stale_runs.beat("dead", seconds_ago=15)
    await stale_runs.claimed()
    async with (
        working(database_url, stale_runs.stores, free),
        working(database_url, stale_runs.stores, full),
    ):
        assert await stale_runs.recover() == [KEY]
        assert (await free.has(KEY)).fence == 2


TAKING: dict[str, Any] = {"stale_seconds": STALE, "max_attempts": 5}


async def silent(stale_runs: StaleRuns) -> list[Silent]:
    """Return all workers, as if each had been silent for too long."""
    rows = await stale_runs.oracle.rows("SELECT worker_id, beat_at FROM workers")
    return [Silent(row["worker_id"], row["beat_at"], exceeded_stale_timeout=True) for row in rows]


@asynccontextmanager
async def locked(stale_runs: StaleRuns, run_id: str) -> AsyncIterator[None]:
    """Lock the row of a run, like a process frozen in a transaction."""
    async with stale_runs.oracle.connection.transaction():
        await stale_runs.oracle.rows("SELECT FROM runs WHERE run_id = %s FOR UPDATE", run_id)
        yield
