"""Hamilton: chained functions, the driver built once; its plain driver and its asynchronous one."""

import asyncio
from functools import lru_cache
from typing import Any

from hamilton import ad_hoc_utils, async_driver, driver  # type: ignore[import-not-found]

from bench.answering import answer
from bench.timing import seconds_each, seconds_each_awaited

STEP = """
{how} step_{number}(step_{before}: int) -> int:
    return step_{before} + 1
"""


def chain(steps: int, times: int) -> float:
    """Return the time of one step of a chain of plain functions, which cannot wait."""
    built, last = _plain(steps), f"step_{steps}"

    def execute() -> None:
        assert built.execute([last], inputs={"step_0": 0}) == {last: steps}

    return seconds_each(execute, times) / steps


def chain_awaited(steps: int, times: int) -> float:
    """Return the time of one step of a chain of coroutine functions."""
    built, last = _asynchronous(steps), f"step_{steps}"

    async def execute() -> None:
        assert await built.execute([last], inputs={"step_0": 0}) == {last: steps}

    return seconds_each_awaited(execute, times) / steps


@lru_cache
def _plain(steps: int) -> Any:
    return driver.Builder().with_modules(_module("def", steps)).build()


@lru_cache
def _asynchronous(steps: int) -> Any:
    module = _module("async def", steps)
    return asyncio.run(async_driver.Builder().with_modules(module).build())


def _module(how: str, steps: int) -> Any:
    """Return a module of functions whose parameter names the previous function."""
    functions = (
        STEP.format(how=how, number=number, before=number - 1) for number in range(1, steps + 1)
    )
    return ad_hoc_utils.module_from_source("".join(functions))


if __name__ == "__main__":
    answer({"chain": chain, "chain_awaited": chain_awaited})
