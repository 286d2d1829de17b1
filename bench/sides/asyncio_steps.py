"""The floor for every asynchronous runtime: each step is a task."""

import asyncio

from bench.answering import answer
from bench.timing import seconds_each_awaited


def chain(steps: int, times: int) -> float:
    """Return the time of one step of a chain, each awaited as a task."""

    async def execute() -> None:
        value = 0
        for _ in range(steps):
            value = await asyncio.create_task(_increment(value))
        assert value == steps

    return seconds_each_awaited(execute, times) / steps


def fan_out(width: int, times: int) -> float:
    """Return the time of one task, ``width`` parallel tasks in a TaskGroup, and a sum."""

    async def execute() -> None:
        begun = await _increment(-1)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(_yield_once(begun)) for _ in range(width)]
        assert sum(task.result() for task in tasks) == width

    return seconds_each_awaited(execute, times)


async def _increment(value: int) -> int:
    return value + 1


async def _yield_once(value: int) -> int:
    await asyncio.sleep(0)
    return value + 1


if __name__ == "__main__":
    answer({"chain": chain, "fan_out": fan_out})
