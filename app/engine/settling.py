"""The one place for what must outlive a cancel, and for what will not be cancelled."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from app.control.stops import Stop
from app.engine.cancellation import CancellationToken

Result = TypeVar("Result")


class AbandonedError(Exception):
    """Work went on although it was cancelled and its grace period had passed."""

    def __init__(self, stop: Stop) -> None:
        super().__init__("The work ignored its cancellation and was abandoned.")
        self.stop = stop


async def settle(write: Coroutine[Any, Any, Result], *, grace_seconds: float) -> Result:
    """Let ``write`` end even if this task is cancelled, then pass the cancel on.

    Raises:
        asyncio.CancelledError: this task was cancelled meanwhile.
    """
    task = asyncio.create_task(write, name="settle")
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task}, timeout=grace_seconds)
        raise


class Supervisor:
    """Runs work that a stop must be able to end, even if the work does not want to."""

    def __init__(self, *, grace_seconds: float) -> None:
        self._grace_seconds = grace_seconds
        self._abandoned: set[asyncio.Task[Any]] = set()

    async def run(
        self,
        work: Coroutine[Any, Any, Result],
        token: CancellationToken,
        *,
        late: Callable[[Result], None],
    ) -> Result:
        """Run ``work`` in a task of its own; cancel it when a stop is given.

        What ignores its cancellation for the grace period is left alone; should it return after
        all, ``late`` is told.

        Raises:
            AbandonedError: the work did not end in time after a stop.
        """
        task = asyncio.create_task(work, name="run")
        loop = asyncio.get_running_loop()
        stopped = loop.create_future()

        def stop() -> None:
            if not stopped.done():
                stopped.set_result(None)

        with token.on_trip(lambda: loop.call_soon_threadsafe(stop)):
            try:
                await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
            except asyncio.CancelledError:
                await self._end(task)
                raise
        if not task.done() and not await self._end(task) and token.stop is not None:
            self._abandon(task, late)
            raise AbandonedError(token.stop)
        return task.result()

    async def _end(self, task: "asyncio.Task[Any]") -> bool:
        task.cancel()
        await asyncio.wait({task}, timeout=self._grace_seconds)
        return task.done()

    def _abandon(self, task: "asyncio.Task[Result]", late: Callable[[Result], None]) -> None:
        self._abandoned.add(task)

        def drop(ended: "asyncio.Task[Result]") -> None:
            self._abandoned.discard(ended)
            if not ended.cancelled() and ended.exception() is None:
                late(ended.result())

        task.add_done_callback(drop)
