"""How sides that only compute are timed; standard library only, for it runs with any peer.

The processor's clock stands still while other processes have the processor. The garbage collector
stays on, for every side alike, and so does asyncio's own event loop.
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

    The loop is the runner's, for work that keeps connections from one time to the next.
    """

    async def measure() -> float:
        gc.collect()
        began = clock()
        for _ in range(times):
            await work()
        return (clock() - began) / times

    return asyncio.run(measure()) if runner is None else runner.run(measure())
