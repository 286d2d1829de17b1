"""Limits of time that interrupt work in flight."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from app.control.ledger import Scope
from app.control.stops import Stop
from app.engine.cancellation import CancellationToken
from app.engine.supervision import detach, until_done

Result = TypeVar("Result")


class OutOfTimeError(Exception):
    """Work did not end within its time."""


class Watcher(Protocol):
    """Is told what becomes of work that is cut off."""

    def out_of_time(self) -> None:
        """Its time is up."""
        ...

    def cut_off(self) -> None:
        """It is cancelled now, for that reason or another."""
        ...

    def abandoned(self) -> None:
        """It has ignored that for its grace period and is left alone."""
        ...

    def late(self, result: Any) -> None:
        """It came to a result all the same, which is dropped."""
        ...

    def over(self) -> None:
        """It has ended, in whatever way."""
        ...


async def within(
    seconds: float,
    work: Coroutine[Any, Any, Result],
    *,
    name: str,
    grace_seconds: float,
    watcher: Watcher,
) -> Result:
    """Let ``work`` run in a task of its own, for ``seconds`` at the most.

    What ignores its cancellation for the grace period is left alone; what it returns after its
    time is dropped.

    Raises:
        OutOfTimeError: it did not end in time. An own TimeoutError of the work is not this.
        Stop: it met one, even if its time was up by then.
    """
    loop = asyncio.get_running_loop()
    task = asyncio.create_task(work, name=name)
    over = loop.create_future()

    def end(_: object = None) -> None:
        if not over.done():
            over.set_result(None)

    task.add_done_callback(end)
    timer = loop.call_later(seconds, end)
    try:
        await over
    except asyncio.CancelledError:
        await _cut_off(task, grace_seconds, watcher)
        raise
    finally:
        timer.cancel()
    if task.done():
        return task.result()
    watcher.out_of_time()
    cancelled = await _cut_off(task, grace_seconds, watcher)
    if cancelled is not None:
        raise cancelled
    raise OutOfTimeError


async def _cut_off(
    task: "asyncio.Task[Any]", grace_seconds: float, watcher: Watcher
) -> asyncio.CancelledError | None:
    """Cancel a task and drop what it comes to, now or later; return a cancel that came meanwhile.

    Raises:
        Stop: the task met one.
    """
    watcher.cut_off()
    task.cancel()
    cancelled = await until_done((task,), grace_seconds)
    if not task.done():
        watcher.abandoned()
    detach(task, watcher.late, over=watcher.over)
    _pass_on_stop(task)
    return cancelled


def _pass_on_stop(task: "asyncio.Task[Any]") -> None:
    """Raise the stop that work met after its time, if it met one.

    Raises:
        Stop: it did.
    """
    error = None if not task.done() or task.cancelled() else task.exception()
    if isinstance(error, Stop):
        raise error


@contextmanager
def seconds_of(
    scope: Scope, token: CancellationToken, *, matter: Callable[[], bool] = lambda: True
) -> Iterator[None]:
    """Have the seconds of a scope interrupt the run while the block works.

    If they are over already, it is interrupted at once. Shares of the limit that are worth a
    warning are told as they pass. ``matter`` tells whether what happens in the block still counts.
    """
    limit = scope.budget.max_time_seconds
    if limit is None:
        yield
        return
    loop, timers = asyncio.get_running_loop(), list[asyncio.TimerHandle]()

    def interrupt() -> None:
        if matter():
            token.trip(scope.out_of_own_time())

    used = scope.usage.time_elapsed_seconds
    for share in scope.shares_to_warn_of():
        timers.append(loop.call_later(max(0.0, share * limit - used), scope.warn_of_time, share))
    if used >= limit:
        interrupt()
    else:
        timers.append(loop.call_later(limit - used, interrupt))
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
