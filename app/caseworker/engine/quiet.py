"""Decides when a run is quiet: all its work waits, so that it may be suspended or stopped.

See docs/internals.md, "Stops".
"""

import asyncio
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from caseworker.engine.calls import Calls
from caseworker.engine.step_path import StepPath

TURNS = 10
"""Number of event-loop iterations for which a run must be quiet before it is suspended or stopped.
A few iterations always pass between the end of one step and the start of the next."""

QUIET_SECONDS = 0.005
"""Interval, in seconds, at which a run with a delayed stop is checked."""


@contextmanager
def replaying(calls: Calls, *, grace_seconds: float) -> Iterator[None]:
    """End the delay of stops at the end of the block, or before.

    A delayed stop takes effect once all recorded work is repeated, at the latest
    ``grace_seconds`` after it arrived.
    """
    loop, tasks = asyncio.get_running_loop(), list[asyncio.Task[None]]()

    def delayed() -> None:
        if not tasks:
            tasks.append(asyncio.create_task(_release(calls, grace_seconds), name="replay"))

    calls.token.on_delay(lambda: loop.call_soon_threadsafe(delayed))
    try:
        yield
    finally:
        calls.token.release()
        for task in tasks:
            task.cancel()


async def _release(calls: Calls, grace_seconds: float) -> None:
    clock = asyncio.get_running_loop().time
    until = clock() + grace_seconds
    while clock() < until:
        if await are_quiet(calls, lambda: calls.activity.waiting):
            break
        await asyncio.sleep(QUIET_SECONDS)
    calls.token.release()


async def are_quiet(calls: Calls, waiting: Callable[[], Collection[StepPath]]) -> bool:
    """Return whether all active work waits at the paths that ``waiting`` returns.

    This must hold for ``TURNS`` iterations of the event loop.
    """
    revision = calls.graph.revision  # an unchanged trace proves that no step started in between
    for _ in range(TURNS):
        if not _all_are_waiting(calls, waiting()):
            return False
        await asyncio.sleep(0)  # other tasks run here and may start the next step
    return bool(waiting()) and calls.graph.revision == revision


def _all_are_waiting(calls: Calls, waiting: Collection[StepPath]) -> bool:
    """Return whether every active step or call is cut off, or waits, or encloses a wait."""
    enclosing = {each.text for each in waiting}.union(*(each.enclosing_paths() for each in waiting))
    cut_off = calls.detached.covers_inside
    return all(path.text in enclosing or cut_off(path) for path in calls.activity.working.values())
