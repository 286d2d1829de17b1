"""Runs that a process gives back, loses, or gets again."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from app.engine.context import FlowContext
from app.runs.run import RunStatus
from tests.support.memory_runs import MemoryRuns
from tests.unit.runs.works import must_not_run, run_story, waits
from tests.unit.runs.world import (
    KEY,
    Process,
    loop,
    new_run,
)


@pytest.mark.parametrize("seed", range(10))
def test_a_process_that_ends_lets_runs_end_and_gives_the_others_back(seed: int) -> None:
    """Without counting an attempt, and it starts nothing more."""

    async def story() -> None:
        async def works(context: FlowContext) -> str:
            await asyncio.sleep(1 if context.run_id == "short" else 30)
            return "done"

        process = Process(works)
        await process.post(new_run("short"))
        await process.post(new_run("long"))
        await process.executor.drain(5)

        assert loop().time() == 5
        short = await process.service.get(replace(KEY, run_id="short"))
        long = await process.service.get(replace(KEY, run_id="long"))
        assert short.status is RunStatus.COMPLETED
        assert (long.status, long.attempts, long.worker_id) == (RunStatus.QUEUED, 0, None)
        assert long.active_seconds == pytest.approx(5)
        assert not process.executor.reserve()
        assert (await process.post(new_run("later"))).status is RunStatus.QUEUED

    run_story(story, seed)


@pytest.mark.parametrize("seed", range(10))
def test_a_run_that_was_just_being_claimed_is_given_back_as_well(seed: int) -> None:
    """The process waits for it; or it would be executed by a process that is no more."""

    class SlowToAccept(MemoryRuns):
        async def accept(self, *arguments: Any, **options: Any) -> Any:
            accepted = await super().accept(*arguments, **options)
            await asyncio.sleep(10)
            return accepted

    async def story() -> None:
        process = Process(must_not_run, SlowToAccept())
        accepting = asyncio.create_task(process.post())
        await asyncio.sleep(1)
        await process.executor.drain(0)
        assert loop().time() == 10
        await accepting
        run = await process.service.get(KEY)
        assert (run.status, run.attempts) == (RunStatus.QUEUED, 0)

    run_story(story, seed)


@pytest.mark.parametrize("seed", range(10))
def test_a_cancel_request_wins_over_the_end_of_the_process(seed: int) -> None:
    """The run is cancelled here and now, not handed over."""

    async def story() -> None:
        async def winds_up(context: FlowContext) -> str:
            try:
                await asyncio.sleep(30)
            finally:
                await asyncio.sleep(1)
            return "done"

        process = Process(winds_up)
        await process.post()
        await asyncio.sleep(1)
        draining = asyncio.create_task(process.executor.drain(0))
        await asyncio.sleep(0.5)
        await process.service.cancel(KEY, by="ops")
        await draining
        assert (await process.service.get(KEY)).status is RunStatus.CANCELLED
        assert RunStatus.QUEUED not in process.store.history(KEY)

    run_story(story, seed)


def test_a_run_that_was_lost_is_not_given_back() -> None:
    """It is not this process's to give."""
    given_back: list[Any] = []

    class Watched(MemoryRuns):
        async def release(self, *arguments: Any, **options: Any) -> None:
            given_back.append(arguments)

    async def story() -> None:
        process = Process(waits, Watched())
        await process.post()
        await asyncio.sleep(1)
        process.store.lose("p1")
        process.executor.lose(KEY)
        await process.executor.ended(KEY)
        assert loop().time() == 1

    run_story(story)
    assert given_back == []


def test_a_run_that_is_started_twice_is_executed_once() -> None:
    """A job may be delivered twice."""
    begun: list[str] = []

    async def story() -> None:
        async def works(context: FlowContext) -> str:
            begun.append(context.run_id)
            await asyncio.sleep(1)
            return "done"

        process = Process(works)
        run = await process.post()
        process.executor.start(run, permitted_at=0)
        assert (await process.end_of()).status is RunStatus.COMPLETED

    run_story(story)
    assert begun == ["r0"]


@pytest.mark.parametrize("seed", range(10))
def test_a_run_that_was_lost_and_claimed_again_begins_when_its_lost_execution_has_ended(
    seed: int,
) -> None:
    """This process did not know that it was lost."""
    times: list[tuple[str, float]] = []

    async def story() -> None:
        async def works(context: FlowContext) -> str:
            times.append(("begun", loop().time()))
            try:
                await asyncio.sleep(10)
            finally:
                await asyncio.sleep(0.5)
                times.append(("ended", loop().time()))
            return "done"

        process = Process(works)
        await process.post()
        await asyncio.sleep(1)
        process.store.lose("p1")
        await process.take()
        run = await process.end_of()
        assert (run.status, run.fence) == (RunStatus.COMPLETED, 2)
        assert process.executor.active == frozenset()

    run_story(story, seed)
    assert times == [("begun", 0), ("ended", 1.5), ("begun", 1.5), ("ended", 12.0)]
