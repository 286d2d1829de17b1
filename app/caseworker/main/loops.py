"""Loops of a process, which are restarted on failure."""

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from caseworker.engine.cancellation import is_being_cancelled

log = structlog.get_logger(__name__)

RESTART_SECONDS = (0.1, 5.0)
"""First and maximum back-off, in seconds, before a loop is restarted."""

STOP_AGAIN_SECONDS = 1.0
"""Seconds to wait for a cancelled loop to end before it is cancelled again."""

WORKING_SECONDS = 1.0
"""Seconds by which a restarted loop must outlast its previous run to count as working. A loop that
cannot connect always fails after the same time: the connection timeout."""

CONNECT_SECONDS = 10.0
"""Connection timeout in seconds. A loop that ran longer than this must have been connected."""

STEADY_SECONDS = 30.0
"""Seconds that a loop must run before its back-off is reset."""


class Loops:
    """Runs endless loops as tasks, and restarts them if they fail or return."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._up_at: dict[str, float] = {}
        """When each loop that has ended at least twice counts as working again."""

    def keep(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        """Run ``loop`` until :meth:`stop`, restarting it when it ends."""
        self._tasks[name] = asyncio.create_task(self._forever(name, loop), name=name)

    def failing(self) -> list[str]:
        """Return the names of loops that repeatedly ended soon after they were started."""
        now = asyncio.get_running_loop().time()
        return sorted(name for name, up_at in self._up_at.items() if now < up_at)

    async def stop(self) -> None:
        """Stop all loops.

        Cancellation is repeated until all loops have ended. A loop that fails at that moment may
        replace the cancellation with its own error, for example if a task of its task group failed.
        """
        unfinished = set(self._tasks.values())
        while unfinished:
            for task in unfinished:
                task.cancel()
            _, unfinished = await asyncio.wait(unfinished, timeout=STOP_AGAIN_SECONDS)

    async def _forever(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        initial_delay_seconds, max_delay_seconds = RESTART_SECONDS
        delay_seconds = initial_delay_seconds
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            await _run_until_error(name, loop)
            if (ran := clock() - began) > STEADY_SECONDS:
                delay_seconds = initial_delay_seconds
            if delay_seconds > initial_delay_seconds:
                running_at = clock() + delay_seconds + min(ran, CONNECT_SECONDS)
                self._up_at[name] = running_at + WORKING_SECONDS
            await asyncio.sleep(delay_seconds)
            delay_seconds = min(2 * delay_seconds, max_delay_seconds)


async def _run_until_error(name: str, loop: Callable[[], Awaitable[None]]) -> None:
    """Run a loop until it returns or fails; log either.

    Raises:
        asyncio.CancelledError: this task is being cancelled.
    """
    try:
        await loop()
        log.warning("loop.ended", loop=name)
    except asyncio.CancelledError as error:
        if is_being_cancelled():
            raise
        log.warning("loop.failed", loop=name, error=type(error).__name__)
    except Exception as error:
        log.warning("loop.failed", loop=name, error=type(error).__name__)
    if is_being_cancelled():
        raise asyncio.CancelledError
