"""Runs of a process that shuts down: no call starts, and none in flight is lost."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import pytest

from caseworker.engine.call import AttemptError, Reply
from caseworker.engine.context import FlowContext
from caseworker.runs.run import RunStatus
from tests.support.graph_invariants import violations
from tests.support.limits import retry_policy
from tests.support.memory_runs import MemoryRuns
from tests.support.runs import (
    EPOCH,
    KEY,
    RunProcess,
    answering,
    call,
    database,
    loop,
    run_story,
)

pytestmark = pytest.mark.req("cw/5.release")

GRACE = 5.0
SLOW = retry_policy(initial_delay_seconds=60.0, jitter=0.0)


class Calls:
    """The calls that a story has made, with the times of their starts."""

    def __init__(self) -> None:
        self.made: list[tuple[str, float]] = []

    def sends(self, name: str, seconds: float) -> Callable[[], Awaitable[Reply]]:
        """Return an attempt of this duration."""
        reply = answering(name, seconds=seconds)

        async def attempt() -> Reply:
            self.made.append((name, loop().time()))
            return await reply()

        return attempt

    async def make(self, context: FlowContext, name: str, seconds: float, **about: Any) -> Any:
        """Make one call of this duration."""
        return await call(context, name, self.sends(name, seconds), **about)


async def _released(process: RunProcess) -> float:
    """Drain a process; return the time at which it has released its run."""
    await process.executor.drain(GRACE)
    run = await process.service.get(KEY)
    assert (run.status, run.attempts, run.worker_id) == (RunStatus.QUEUED, 0, None)
    return loop().time()


async def _goes_on(work: Any, store: MemoryRuns) -> None:
    """Execute the run in another process, and check its trace and its events."""
    second = RunProcess(work, store, name="p2")
    await second.take()
    run = await second.end_of()
    assert run.status is RunStatus.COMPLETED, run.stop
    assert run.attempts == 1
    trace = await second.service.trace(KEY)
    assert violations(trace.snapshot) == []
    page = await second.service.events(KEY, after=0, limit=1000)
    kinds = [event.type for event in page.events]
    assert "run.resumed" in kinds
    assert kinds.count("step.started") == kinds.count("step.completed")


def test_a_run_is_released_when_its_call_in_flight_has_ended() -> None:
    """No further call starts, and the next process makes only the calls that are left."""

    async def story() -> None:
        calls, store = Calls(), database()

        async def work(context: FlowContext) -> str:
            for number in range(3):
                await calls.make(context, f"call-{number}", 2.0)
            return "done"

        process = RunProcess(work, store)
        await process.post()
        await asyncio.sleep(2.5)
        assert await _released(process) == pytest.approx(4.0)
        assert [name for name, _ in calls.made] == ["call-0", "call-1"]
        await _goes_on(work, store)
        assert [name for name, _ in calls.made] == ["call-0", "call-1", "call-2"]

    run_story(story)


def test_a_run_is_released_when_its_slowest_call_in_flight_has_ended() -> None:
    """Parallel calls that become ready are made by the next process."""

    async def story() -> None:
        calls, store = Calls(), database()

        async def lane(context: FlowContext, name: str, seconds: float) -> None:
            await calls.make(context, f"{name}-1", seconds)
            await calls.make(context, f"{name}-2", 1.0)

        async def work(context: FlowContext) -> str:
            async with asyncio.TaskGroup() as group:
                for name, seconds in (("fast", 1.0), ("slow", 4.0)):
                    group.create_task(lane(context, name, seconds))
            return "done"

        process = RunProcess(work, store)
        await process.post()
        await asyncio.sleep(0.5)
        assert await _released(process) == pytest.approx(4.0)
        assert sorted(name for name, _ in calls.made) == ["fast-1", "slow-1"]
        await _goes_on(work, store)
        made = sorted(name for name, _ in calls.made)
        assert made == ["fast-1", "fast-2", "slow-1", "slow-2"]

    run_story(story)


def test_a_call_that_outlasts_the_grace_period_is_cancelled() -> None:
    """The grace period is an upper bound."""

    async def story() -> None:
        calls, store = Calls(), database()

        async def work(context: FlowContext) -> str:
            await calls.make(context, "long", 8.0)
            return "done"

        process = RunProcess(work, store)
        await process.post()
        await asyncio.sleep(0.5)
        assert await _released(process) == pytest.approx(0.5 + GRACE)
        await _goes_on(work, store)
        assert [name for name, _ in calls.made] == ["long", "long"]

    run_story(story)


async def _busy() -> Reply:
    raise AttemptError("busy", error_class="http_503", retryable=True)


async def _retries_a_call(context: FlowContext, calls: Calls, *, again: bool) -> None:
    attempt = calls.sends("call", 0.1) if again else _busy
    await call(context, "call", attempt, retry=SLOW)


async def _waits_for_a_lock(context: FlowContext, calls: Calls, *, again: bool) -> None:
    lock = asyncio.Lock()
    if not again:
        await lock.acquire()
    async with context.calls.activity.waits(context.path.call("lock")):
        await lock.acquire()


WAITS = {
    "a retry of a call": _retries_a_call,
    "a lock": _waits_for_a_lock,
}


@pytest.mark.parametrize("wait", WAITS.values(), ids=WAITS)
def test_a_run_that_only_waits_is_released_at_once(wait: Any) -> None:
    """Sleeps and queues do not delay the end of the process."""

    async def story() -> None:
        calls, store = Calls(), database()

        async def first(context: FlowContext) -> str:
            await wait(context, calls, again=False)
            return "done"

        async def second(context: FlowContext) -> str:
            await wait(context, calls, again=True)
            return "done"

        process = RunProcess(first, store)
        await process.post()
        await asyncio.sleep(2)
        assert await _released(process) == pytest.approx(2.0, abs=0.1)
        await _goes_on(second, store)

    run_story(story)


def test_a_call_that_was_about_to_start_is_not_made_here() -> None:
    """The journal's write before the call is still in progress when the process is drained."""

    async def story() -> None:
        calls = Calls()

        class SlowToWrite(MemoryRuns):
            async def write(self, write: Any) -> Any:
                await asyncio.sleep(3)
                return await super().write(write)

        clock = loop().time
        store = SlowToWrite(now=lambda: EPOCH + timedelta(seconds=clock()))

        async def work(context: FlowContext) -> str:
            await calls.make(context, "call", 1.0)
            return "done"

        process = RunProcess(work, store)
        await process.post()
        await asyncio.sleep(1)
        await _released(process)
        assert calls.made == []
        await _goes_on(work, store)
        assert len(calls.made) == 1

    run_story(story)
