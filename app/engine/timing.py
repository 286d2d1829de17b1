"""Limits of time that interrupt work in flight."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from app.control.ledger import Scope
from app.control.stops import Stop
from app.engine.cancellation import CancellationToken
from app.engine.settling import leave_alone, until_done

Result = TypeVar("Result")


class OutOfTimeError(Exception):
    """Work did not end within its time."""


async def within(
    seconds: float,
    work: Coroutine[Any, Any, Result],
    *,
    name: str,
    grace_seconds: float,
    abandoned: Callable[[], None],
    late: Callable[[Result], None],
) -> Result:
    """Let ``work`` run in a task of its own, for ``seconds`` at the most.

    What ignores its cancellation for the grace period is left alone, and ``abandoned`` is called;
    what it returns after its time is dropped, and ``late`` is told of it.

    Raises:
        OutOfTimeError: it did not end in time. An own TimeoutError of the work is not this.
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
        task.cancel()
        await until_done((task,), grace_seconds)
        _let_go(task, abandoned, late)
        raise
    finally:
        timer.cancel()
    if task.done():
        return task.result()
    task.cancel()
    cancelled = await until_done((task,), grace_seconds)
    _let_go(task, abandoned, late)
    if cancelled is not None:
        raise cancelled
    _pass_on_stop(task)
    raise OutOfTimeError


def _let_go(
    task: "asyncio.Task[Result]", abandoned: Callable[[], None], late: Callable[[Result], None]
) -> None:
    """Drop what a cancelled task comes to, now or later."""
    if not task.done():
        abandoned()
        leave_alone(task, late)
    elif not task.cancelled() and task.exception() is None:
        late(task.result())


def _pass_on_stop(task: "asyncio.Task[Any]") -> None:
    """Raise the stop that work met after its time, if it met one.

    Raises:
        Stop: it did.
    """
    error = None if not task.done() or task.cancelled() else task.exception()
    if isinstance(error, Stop):
        raise error


@contextmanager
def seconds_of(scope: Scope, token: CancellationToken) -> Iterator[None]:
    """Have the seconds of a scope interrupt the run while the block works.

    If they are over already, it is interrupted at once. Shares of the limit that are worth a
    warning are told as they pass.
    """
    limit = scope.budget.max_time_seconds
    if limit is None:
        yield
        return
    loop, timers = asyncio.get_running_loop(), list[asyncio.TimerHandle]()
    used = scope.usage.time_elapsed_seconds
    for share in scope.shares_to_warn_of():
        timers.append(loop.call_later(max(0.0, share * limit - used), scope.warn_of_time, share))
    if used >= limit:
        token.trip(scope.out_of_own_time())
    else:
        timers.append(loop.call_later(limit - used, lambda: token.trip(scope.out_of_own_time())))
    try:
        yield
    finally:
        for timer in timers:
            timer.cancel()
