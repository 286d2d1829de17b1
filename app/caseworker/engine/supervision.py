"""What ends work in flight, and what becomes of work that does not end."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any, TypeVar

import structlog

from caseworker.control.ledger import Scope
from caseworker.control.stops import DeadlineExceededError, Stop
from caseworker.engine.cancellation import CancellationToken
from caseworker.engine.step_path import Area, StepPath

Result = TypeVar("Result")

_log = structlog.get_logger(__name__)


class DetachedWork:
    """Work of a run that was cut off although it may go on: it begins nothing more."""

    __slots__ = ("areas",)

    def __init__(self) -> None:
        self.areas: tuple[Area, ...] = ()
        """What was cut off; hardly ever is there any."""

    def begin(self, area: Area) -> None:
        """Cut off everything in an area."""
        self.areas += (area,)

    def end(self, area: Area) -> None:
        """Forget an area that has come to its end; as often as it was begun."""
        left = list(self.areas)
        left.remove(area)
        self.areas = tuple(left)

    def covers_inside(self, path: StepPath) -> bool:
        """Return whether everything inside a path was cut off."""
        return any(path == area.path or path in area for area in self.areas)

    def check(self, path: StepPath) -> None:
        """Keep a step or a call from beginning inside of what was cut off.

        Raises:
            asyncio.CancelledError: it is inside; it had been cancelled, and went on.
        """
        if any(path in area for area in self.areas):
            raise asyncio.CancelledError("The work around it was cut off.")


class DetachedError(Exception):
    """Work went on although it was cancelled and its grace period had passed."""

    def __init__(self, stop: Stop) -> None:
        super().__init__("The work ignored its cancellation and was abandoned.")
        self.stop = stop


async def shielded(write: Coroutine[Any, Any, Result], *, grace_seconds: float) -> Result:
    """Let ``write`` end even if this task is cancelled, then pass the cancel on.

    However often this task is cancelled, it waits for ``grace_seconds`` after the first time.

    Raises:
        asyncio.CancelledError: this task was cancelled meanwhile.
    """
    task = asyncio.create_task(write, name="shielded")
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(forget_failure)
        await until_done((task,), grace_seconds)
        raise


def forget_failure(task: "asyncio.Task[Any]") -> None:
    """Let go of how a task has failed that nobody else looks at."""
    if not task.cancelled():
        task.exception()


async def until_done(
    tasks: Iterable["asyncio.Task[Any]"], seconds: float
) -> asyncio.CancelledError | None:
    """Wait for tasks for a while, deaf to cancels; return one that came, to be passed on."""
    clock = asyncio.get_running_loop().time
    until = clock() + seconds
    heard: asyncio.CancelledError | None = None
    left = [task for task in tasks if not task.done()]
    while left and clock() < until:
        try:
            await asyncio.wait(left, timeout=until - clock())
        except asyncio.CancelledError as cancelled:
            heard = cancelled
        left = [task for task in left if not task.done()]
    return heard


async def set_within(event: asyncio.Event, seconds: float) -> None:
    """Wait until an event is set, or until so many seconds have passed."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


class Supervisor:
    """Runs work that a stop must be able to end, even if the work does not want to."""

    def __init__(self, *, grace_seconds: float) -> None:
        """Supervise work that has ``grace_seconds`` to end after it was cancelled."""
        self.grace_seconds = grace_seconds
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(
        self,
        work: Coroutine[Any, Any, Result],
        token: CancellationToken,
        *,
        late: Callable[[Result], None],
    ) -> Result:
        """Run ``work`` in a task of its own; cancel it when a stop is given.

        What ignores that for the grace period is abandoned; ``late`` is called with what it
        returns later.

        Raises:
            DetachedError: the work did not end in time after a stop.
            Stop: the work ended by its cancellation, without a result.
            asyncio.CancelledError: this task was cancelled, and with it the work.
        """
        loop = asyncio.get_running_loop()
        stopped = loop.create_future()

        def stop(_: object = None) -> None:
            if not stopped.done():
                stopped.set_result(None)

        task = asyncio.create_task(work, name="run")
        task.add_done_callback(stop)
        self._tasks.add(task)  # the loop itself would let go of it
        task.add_done_callback(self._tasks.discard)
        try:
            with token.on_trip(lambda: loop.call_soon_threadsafe(stop)):
                await stopped
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=self.grace_seconds)
        except asyncio.CancelledError:
            task.cancel()
            task.add_done_callback(forget_failure)
            await until_done((task,), self.grace_seconds)
            if not task.done():
                detach(task, late)
            raise
        if not task.done() and token.stop is not None:
            detach(task, late)
            raise DetachedError(token.stop)
        if task.cancelled():
            token.check()
        return task.result()


def detach(
    task: "asyncio.Task[Result]",
    late: Callable[[Result], None],
    *,
    over: Callable[[], None] = lambda: None,
) -> None:
    """Call ``late`` with what cancelled work returns, now or later; then call ``over``."""

    def tell(ended: "asyncio.Task[Result]") -> None:
        if not ended.cancelled() and ended.exception() is None:
            late(ended.result())
        over()

    if task.done():
        tell(task)
    else:
        task.add_done_callback(tell)


@contextmanager
def seconds_of(
    scope: Scope, token: CancellationToken, *, matter: Callable[[], bool] = lambda: True
) -> Iterator[None]:
    """Have the seconds of a scope interrupt the run while the block works.

    If they are over already, it is interrupted at once. Shares of the limit that are worth a
    warning are reported as they pass. ``matter`` returns whether what happens in the block still
    counts.
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


@contextmanager
def deadline_of(deadline: datetime | None, token: CancellationToken) -> Iterator[None]:
    """Have a deadline interrupt the run while the block works; at once if it has passed."""
    if deadline is None:
        yield
        return
    left, stop = (deadline - datetime.now(UTC)).total_seconds(), DeadlineExceededError(deadline)
    if left <= 0:
        token.trip(stop)
    timer = asyncio.get_running_loop().call_later(max(0.0, left), token.trip, stop)
    try:
        yield
    finally:
        timer.cancel()
