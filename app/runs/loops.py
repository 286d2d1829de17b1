"""Loops that must live as long as the process does."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from app.engine.cancellation import is_being_cancelled

log = structlog.get_logger(__name__)

RESTART_SECONDS = (0.1, 5.0)
"""How long a loop that ended waits before it is started again: first, at most."""

STEADY_SECONDS = 30.0
"""How long a loop must have run for the next wait to be the first one again."""


class Loops:
    """Starts loops again when they end, whether they failed or returned."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def keep(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        """Run ``loop`` for ever."""
        self._tasks[name] = asyncio.create_task(_forever(name, loop), name=name)

    async def stop(self) -> None:
        """End all loops."""
        for task in self._tasks.values():
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks.values())


async def _forever(name: str, loop: Callable[[], Awaitable[None]]) -> None:
    first, longest = RESTART_SECONDS
    pause = first
    clock = asyncio.get_running_loop().time
    while True:
        began = clock()
        try:
            await loop()
            log.warning("loop.ended", loop=name)
        except asyncio.CancelledError as error:
            if is_being_cancelled():
                raise
            log.warning("loop.failed", loop=name, error=type(error).__name__)
        except Exception as error:
            log.warning("loop.failed", loop=name, error=type(error).__name__)
        if clock() - began > STEADY_SECONDS:
            pause = first
        await asyncio.sleep(pause)
        pause = min(2 * pause, longest)
