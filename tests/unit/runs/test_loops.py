"""Background loops that must run as long as the process."""

import asyncio
from itertools import pairwise

from caseworker.runs.recover.heartbeat import Loops
from tests.support.runs import loop, run_story


def test_a_loop_that_ends_is_started_again_whatever_ended_it() -> None:
    """The loop may fail, return, or await a cancelled task."""
    begun: list[float] = []

    async def ends() -> None:
        begun.append(loop().time())
        if len(begun) == 1:
            raise RuntimeError("gone")
        if len(begun) == 2:
            gone = loop().create_future()
            gone.cancel()
            await gone
        if len(begun) > 3:
            await asyncio.sleep(1000)

    async def story() -> None:
        loops = Loops()
        loops.keep("ends", ends)
        await asyncio.sleep(10)
        await loops.stop()

    said = run_story(story, after_seconds=0)
    assert begun == [0, 0.1, 0.30000000000000004, 0.7000000000000001]
    assert said == ["loop.failed RuntimeError", "loop.failed CancelledError", "loop.ended"]


def test_a_loop_that_keeps_failing_is_started_ever_more_rarely() -> None:
    """The delay grows to five seconds and resets after a long successful run."""
    begun: list[float] = []

    async def fails() -> None:
        begun.append(loop().time())
        if len(begun) == 12:
            await asyncio.sleep(31)
        raise RuntimeError("gone")

    async def story() -> None:
        loops = Loops()
        loops.keep("fails", fails)
        await asyncio.sleep(80)
        await loops.stop()

    run_story(story, after_seconds=0)
    pauses = [round(later - sooner, 3) for sooner, later in pairwise(begun)]
    assert pauses[:7] == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0]
    assert pauses[7:11] == [5.0] * 4
    assert pauses[11:13] == [31.1, 0.2]


def test_stopped_loops_are_over() -> None:
    """No task is left running, even with an empty list of loops."""
    ended: list[str] = []

    async def lives() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(1)
            ended.append("lives")

    async def story() -> None:
        await Loops().stop()
        loops = Loops()
        loops.keep("lives", lives)
        await asyncio.sleep(1)
        await loops.stop()
        assert ended == ["lives"]

    run_story(story, after_seconds=0)


def test_a_loop_whose_tasks_have_just_failed_ends_when_it_is_stopped() -> None:
    """A task group that is failing answers the cancellation with its tasks' error."""
    begun: list[float] = []

    async def slow_to_end() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            await asyncio.sleep(2)

    async def fails() -> None:
        await asyncio.sleep(1)
        raise RuntimeError("gone")

    async def loses_its_tasks() -> None:
        begun.append(loop().time())
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(slow_to_end())
            tasks.create_task(fails())

    async def story() -> None:
        loops = Loops()
        loops.keep("group", loses_its_tasks)
        await asyncio.sleep(2)
        await loops.stop()
        assert loop().time() == 3

    run_story(story, after_seconds=0)
    assert begun == [0]


def test_a_loop_that_swallows_a_cancel_is_cancelled_again() -> None:
    """A loop whose library swallows a cancellation is cancelled again."""

    async def swallows() -> None:
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            await asyncio.sleep(1000)

    async def story() -> None:
        loops = Loops()
        loops.keep("swallows", swallows)
        await asyncio.sleep(1)
        await loops.stop()
        assert loop().time() == 2

    run_story(story, after_seconds=0)


def test_a_loop_that_fails_again_and_again_is_named_until_it_works() -> None:
    """The first failure is not reported; a loop counts as recovered after a second."""
    begun: list[float] = []

    async def fails() -> None:
        begun.append(loop().time())
        if len(begun) < 4:
            raise RuntimeError("gone")
        await asyncio.sleep(1000)

    async def story() -> None:
        loops = Loops()
        loops.keep("fails", fails)
        await asyncio.sleep(0.05)
        seen = [loops.failing()]
        await asyncio.sleep(0.5)
        seen.append(loops.failing())
        await asyncio.sleep(1.75 - loop().time())
        seen.append(loops.failing())
        await loops.stop()
        assert seen == [[], ["fails"], []]

    run_story(story, after_seconds=0)
