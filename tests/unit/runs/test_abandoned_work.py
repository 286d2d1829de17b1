"""Work that ignores its cancellation, and its cost after the run has ended."""

import asyncio

import pytest

from caseworker.runs.ports import FinishResult, LateResult
from caseworker.runs.run import FinishRun, RunStatus
from tests.support.memory_runs import MemoryRuns
from tests.support.runs import (
    GRACE,
    KEY,
    RunProcess,
    loop,
    run_story,
)
from tests.unit.runs.works import nothing, waits_deaf


@pytest.mark.req("000/C3")
@pytest.mark.parametrize("seed", range(10))
def test_work_that_ignores_its_stop_is_abandoned_and_its_cost_added_later(seed: int) -> None:
    """The run ends after the grace period with the estimated cost; the late result is dropped."""

    async def story() -> None:
        process = RunProcess(waits_deaf)
        await process.post()
        await asyncio.sleep(3)
        await process.service.cancel(KEY, by="ops")
        run = await process.end_of()
        assert loop().time() == 3 + GRACE
        assert (run.status, run.result) == (RunStatus.CANCELLED, None)
        assert run.usage is not None
        assert (run.usage["tokens"], run.usage["api_calls"]) == (100, 1)

        await asyncio.sleep(60)
        later = await process.service.get(KEY)
        assert later.usage is not None
        assert (later.usage["tokens"], later.usage["api_calls"]) == (55, 1)
        assert (later.status, later.result) == (RunStatus.CANCELLED, None)
        [late] = [r for r in await process.store.calls(KEY) if r.node["name"] == "deaf"]
        assert (late.node["status"], late.node["tokens_in"]) == ("halt", 50)

    run_story(story, seed)


def test_a_late_cost_is_added_after_the_end_is_written() -> None:
    """A late cost is added after the end, whose write would overwrite it."""

    class SlowToFinish(MemoryRuns):
        async def finish(self, finish_run: FinishRun) -> FinishResult:
            await asyncio.sleep(50)
            return await super().finish(finish_run)

    async def story() -> None:
        process = RunProcess(waits_deaf, SlowToFinish())
        await process.post()
        await asyncio.sleep(3)
        await process.service.cancel(KEY, by="ops")
        await process.end_of()
        await asyncio.sleep(1)
        run = await process.service.get(KEY)
        assert run.usage is not None
        assert run.usage["tokens"] == 55

    run_story(story)


def test_what_abandoned_work_cost_is_not_added_to_a_run_that_goes_on_elsewhere() -> None:
    """The new owner has counted the estimate and is the only one to write the usage."""
    late: list[LateResult] = []

    class Watched(MemoryRuns):
        async def late(self, result: LateResult) -> None:
            late.append(result)
            await super().late(result)

    async def story() -> None:
        store = Watched()
        process = RunProcess(waits_deaf, store)
        await process.post()
        await asyncio.sleep(3)
        await process.executor.drain(0)
        second = RunProcess(nothing, store, name="p2")
        await second.take()
        run = await second.end_of()
        assert run.usage is not None
        assert run.usage["tokens"] == 100
        await asyncio.sleep(60)

    run_story(story)
    assert late == []
