"""Timing of sides that only compute; standard library only, so that it runs with any peer.

The CPU clock excludes the time of other processes. The garbage collector stays on for every side,
and so does asyncio's default event loop.
"""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from time import process_time


def seconds_each(work: Callable[[], object], times: int) -> float:
    """Return the mean time of one call of ``work``, in seconds."""
    gc.collect()
    began = process_time()
    for _ in range(times):
        work()
    return (process_time() - began) / times


def seconds_each_awaited(
    work: Callable[[], Awaitable[object]],
    times: int,
    runner: asyncio.Runner | None = None,
    clock: Callable[[], float] = process_time,
) -> float:
    """Return the mean time of awaiting ``work`` once, on one event loop, in seconds.

    The loop is the runner's, for work that keeps connections between repetitions.
    """

    async def measure() -> float:
        gc.collect()
        began = clock()
        for _ in range(times):
            await work()
        return (clock() - began) / times

    return asyncio.run(measure()) if runner is None else runner.run(measure())
