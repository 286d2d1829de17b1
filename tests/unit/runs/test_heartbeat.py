"""Heartbeats of a process, and the notifications they make up for."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from caseworker.engine.context import FlowContext
from caseworker.platform.errors import StoreUnavailableError
from caseworker.runs.ports import Beat, FinishResult
from caseworker.runs.run import CancelRequest, FinishRun, Run, RunStatus
from tests.support.memory_runs import MemoryRuns
from tests.support.runs import KEY, RunProcess, database, loop, new_run, run_story


async def waits(context: FlowContext) -> str:
    await asyncio.sleep(100)
    return "done"


async def must_not_run(context: FlowContext) -> str:
    pytest.fail("the step was executed")


async def orphan(process: RunProcess) -> None:
    """Accept a run for a process that is not notified of it."""
    await process.store.accept(new_run(), worker_id=process.name)


async def status_of(process: RunProcess) -> RunStatus:
    return (await process.service.get(KEY)).status


@pytest.mark.req("000/C3", "card/delete")
@pytest.mark.parametrize("seed", range(10))
def test_a_cancel_request_that_nobody_heard_of_is_found_by_the_next_beat(seed: int) -> None:
    """The notification was lost; the heartbeat cancels the call in flight."""

    async def story() -> None:
        process = RunProcess(waits)
        await process.post()
        beating = asyncio.create_task(process.heartbeat.run())
        await asyncio.sleep(2.5)
        await process.store.cancel(KEY, CancelRequest(requested_by="ops", reason="enough"))
        run = await process.end_of()
        assert loop().time() == 4.0
        assert (run.status, run.stop and run.stop["requested_by"]) == (RunStatus.CANCELLED, "ops")
        beating.cancel()
        await asyncio.wait({beating})

    run_story(story, seed, after_seconds=200)


def test_a_run_that_is_owned_here_and_executed_nowhere_is_given_back() -> None:
    """The release takes one interval; a run that never started has lost no attempt."""

    async def story() -> None:
        process = RunProcess(must_not_run)
        await orphan(process)
        await process.heartbeat.beat()
        await process.heartbeat.beat()
        assert await status_of(process) is RunStatus.RUNNING
        await asyncio.sleep(2)
        await process.heartbeat.beat()
        run = await process.service.get(KEY)
        assert (run.status, run.attempts, run.worker_id) == (RunStatus.QUEUED, 0, None)

    run_story(story, after_seconds=200)


def test_a_run_that_others_had_begun_and_that_never_began_here_has_lost_no_attempt_here() -> None:
    """The claim was committed and its answer lost; the journal is that of earlier attempts."""

    async def story() -> None:
        dead = RunProcess(waits)
        await dead.post()
        await asyncio.sleep(1)
        process = RunProcess(must_not_run, dead.store, name="p2")
        dead.store.lose("p1")
        await dead.store.claim(KEY, "p2")
        assert await process.store.calls(KEY)
        await process.heartbeat.beat()
        await asyncio.sleep(2)
        await process.heartbeat.beat()
        run = await process.service.get(KEY)
        assert (run.status, run.attempts, run.losses) == (RunStatus.QUEUED, 1, 1)

    run_story(story, after_seconds=200)


def test_a_run_that_broke_here_has_lost_an_attempt() -> None:
    """A run that crashes its process loses an attempt, or it would be retried forever."""

    class Breaking(MemoryRuns):
        async def finish(self, finish_run: FinishRun) -> FinishResult:
            raise RuntimeError("it cannot be finished")

    async def done(context: FlowContext) -> str:
        return "done"

    async def story() -> None:
        process = RunProcess(done, Breaking())
        await process.post()
        await process.executor.ended(KEY)
        await process.heartbeat.beat()
        await asyncio.sleep(2)
        await process.heartbeat.beat()
        run = await process.service.get(KEY)
        assert (run.status, run.attempts, run.losses) == (RunStatus.QUEUED, 1, 1)
        assert len(process.executor.broken) == 1
        await process.heartbeat.beat()
        assert not process.executor.broken

    run_story(story, after_seconds=200)


def test_a_run_that_is_only_just_being_begun_is_left_alone() -> None:
    """One heartbeat read the run before its start, the next one after."""

    async def story() -> None:
        process = RunProcess(waits)
        accepted = await process.store.accept(new_run(), worker_id="p1")
        await process.heartbeat.beat()
        process.executor.start(accepted.run, permitted_at=loop().time())
        for _ in range(5):
            await asyncio.sleep(2)
            await process.heartbeat.beat()
        assert await status_of(process) is RunStatus.RUNNING

    run_story(story, after_seconds=200)


@pytest.mark.parametrize("meanwhile", ["begun here", "ended", "claimed by another"])
def test_an_orphan_that_found_a_home_meanwhile_is_left_alone(meanwhile: str) -> None:
    """The run is checked again before it is released."""

    class Changing(MemoryRuns):
        process: RunProcess

        async def get(self, key: Any) -> Run | None:
            run = await super().get(key)
            assert run is not None
            if meanwhile == "begun here":
                self.process.executor.start(run, permitted_at=loop().time())
            if meanwhile == "ended":
                return replace(run, status=RunStatus.COMPLETED)
            return replace(run, worker_id="p2") if meanwhile == "claimed by another" else run

        async def release(self, *arguments: Any, **options: Any) -> None:
            pytest.fail("the run was given back")

    async def story() -> None:
        store = Changing()
        store.process = RunProcess(waits, store)
        await orphan(store.process)
        await store.process.heartbeat.beat()
        await asyncio.sleep(2)
        await store.process.heartbeat.beat()

    run_story(story, after_seconds=200)


@pytest.mark.parametrize("seed", range(10))
def test_a_run_that_goes_on_elsewhere_is_stopped_here(seed: int) -> None:
    """A process that was silent too long stops the runs that another process executes."""

    async def story() -> None:
        store = database()
        frozen, other = RunProcess(waits, store), RunProcess(waits, store, name="p2")
        await frozen.post()
        await asyncio.sleep(1)  # no journal write is due, so only the heartbeat detects it
        store.lose("p1")
        await other.take()
        await frozen.heartbeat.beat()
        assert frozen.executor.active == {KEY}
        await asyncio.sleep(2)
        await frozen.heartbeat.beat()
        await frozen.executor.ended(KEY)
        assert loop().time() == 3
        run = await other.service.get(KEY)
        assert (run.status, run.worker_id) == (RunStatus.RUNNING, "p2")

    run_story(story, seed, after_seconds=200)


def test_a_mismatch_of_long_ago_does_not_count() -> None:
    """A run that was seen without execution here is released only after another whole interval."""

    async def story() -> None:
        process = RunProcess(must_not_run)
        await orphan(process)
        await process.heartbeat.beat()
        process.store.lose("p1")
        await process.store.claim(KEY, "p2")
        await asyncio.sleep(5)
        await process.heartbeat.beat()
        process.store.lose("p2")
        await process.store.claim(KEY, "p1")
        await process.heartbeat.beat()
        run = await process.service.get(KEY)
        assert (run.status, run.worker_id) == (RunStatus.RUNNING, "p1")
        await asyncio.sleep(2)
        await process.heartbeat.beat()
        assert await status_of(process) is RunStatus.QUEUED

    run_story(story, after_seconds=200)


def test_a_run_that_was_lost_and_claimed_back_is_not_stopped_by_the_next_loss_at_once() -> None:
    """A heartbeat in between has seen that this process owns the runs that it executes."""

    async def story() -> None:
        process = RunProcess(waits)
        await process.post()
        await asyncio.sleep(1)
        process.store.lose("p1")
        await process.heartbeat.beat()
        await process.store.claim(KEY, "p1")
        await asyncio.sleep(5)
        await process.heartbeat.beat()
        process.store.lose("p1")
        await process.heartbeat.beat()
        await asyncio.sleep(1)
        assert process.executor.active == {KEY}
        await asyncio.sleep(1)
        await process.heartbeat.beat()
        await asyncio.sleep(1)
        assert process.executor.active == frozenset()

    run_story(story, after_seconds=200)


def test_a_beat_that_is_under_way_is_not_cut_off() -> None:
    """Cancelling the statement could close its connection."""

    class Slow(MemoryRuns):
        async def beat(self, worker_id: str) -> Beat:
            await asyncio.sleep(1)
            said.append("beaten")
            return await super().beat(worker_id)

    said: list[str] = []

    async def story() -> None:
        process = RunProcess(waits, Slow())
        beating = asyncio.create_task(process.heartbeat.run())
        await asyncio.sleep(0.5)
        beating.cancel()
        await asyncio.wait({beating})
        assert loop().time() == 1
        assert said == ["beaten"]

    run_story(story, after_seconds=200)


def test_a_process_that_ends_says_so() -> None:
    """A stopping process signs off, so its runs need not wait for missed heartbeats."""

    async def story() -> None:
        process = RunProcess(waits)
        await process.heartbeat.beat()
        assert process.store.workers == {"p1"}
        await process.heartbeat.leave()
        assert process.store.workers == set()

    run_story(story, after_seconds=200)


def test_a_beat_that_finds_no_database_is_tried_again_with_the_next_one() -> None:
    """The interval is short enough that a living process is not considered dead after an outage."""

    class Away(MemoryRuns):
        async def beat(self, worker_id: str) -> Beat:
            times.append(loop().time())
            if len(times) < 30:
                raise StoreUnavailableError
            return await super().beat(worker_id)

    times: list[float] = []

    async def story() -> None:
        process = RunProcess(waits, Away())
        beating = asyncio.create_task(process.heartbeat.run())
        await asyncio.sleep(60)
        beating.cancel()
        await asyncio.wait({beating})

    run_story(story, after_seconds=200)
    assert times[:30] == [2.0 * number for number in range(30)]


def test_a_process_that_cannot_say_that_it_drains_drains_nevertheless() -> None:
    """Whatever the error is, it is not raised, and the process does not try again."""

    class Refusing(MemoryRuns):
        async def stop_accepting(self, worker_id: str) -> None:
            attempts.append(worker_id)
            raise RuntimeError("Out of memory.")

    attempts: list[str] = []

    async def story() -> None:
        process = RunProcess(waits, Refusing())
        await process.heartbeat.stop_accepting()
        await process.heartbeat.stop_accepting()

    run_story(story, after_seconds=200)
    assert attempts == ["p1"]
