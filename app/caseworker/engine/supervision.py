"""Cancels work in flight on a stop, a time limit or a deadline, and abandons work that hangs.

See docs/internals.md, "Stops".
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypeVar

import structlog

from caseworker.core.budget.ledger import Scope
from caseworker.core.budget.stops import DeadlineExceededError, Stop
from caseworker.engine.cancellation import CancellationToken
from caseworker.engine.step_path import Area, StepPath

Result = TypeVar("Result")

_log = structlog.get_logger(__name__)


@dataclass(slots=True, eq=False)
class DetachedWork:
    """Areas whose work was cancelled but may still run; no step or call may start in them."""

    areas: tuple[Area, ...] = ()
    """Areas whose work was cancelled; usually empty."""

    def begin(self, area: Area) -> None:
        """Prevent new steps and calls in an area, because its work is being cancelled."""
        self.areas += (area,)

    def end(self, area: Area) -> None:
        """Remove an area whose work has ended; call this once per :meth:`begin`."""
        areas = list(self.areas)
        areas.remove(area)
        self.areas = tuple(areas)

    def covers_inside(self, path: StepPath) -> bool:
        """Return whether all work inside a path was cancelled."""
        return any(path == area.path or path in area for area in self.areas)

    def check(self, path: StepPath) -> None:
        """Check that a new step or call may start.

        Raises:
            asyncio.CancelledError: the path is in an area whose work was cancelled; the task
                ignored that cancellation.
        """
        if any(path in area for area in self.areas):
            raise asyncio.CancelledError("The work around it was cut off.")


class DetachedError(Exception):
    """Cancelled work did not end within its grace period."""

    def __init__(self, stop: Stop) -> None:
        super().__init__("The work ignored its cancellation and was abandoned.")
        self.stop = stop


async def shielded(write: Coroutine[Any, Any, Result], *, grace_seconds: float) -> Result:
    """Finish ``write`` even if this task is cancelled, then re-raise the cancellation.

    After the first cancellation, this waits up to ``grace_seconds`` and ignores further ones.

    Raises:
        asyncio.CancelledError: this task was cancelled while it waited.
    """
    task = asyncio.create_task(write, name="shielded")
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(forget_failure)
        await until_done((task,), grace_seconds)
        raise


def forget_failure(task: "asyncio.Task[Any]") -> None:
    """Retrieve the exception of an ended task, so that asyncio does not log it as unhandled."""
    if not task.cancelled():
        task.exception()


async def until_done(
    tasks: Iterable["asyncio.Task[Any]"], seconds: float
) -> asyncio.CancelledError | None:
    """Wait up to ``seconds`` for tasks to end, deferring cancellations of this task.

    Returns the last deferred cancellation, which the caller should raise, or None.
    """
    clock = asyncio.get_running_loop().time
    until = clock() + seconds
    deferred: asyncio.CancelledError | None = None
    pending = [task for task in tasks if not task.done()]
    while pending and clock() < until:
        try:
            await asyncio.wait(pending, timeout=until - clock())
        except asyncio.CancelledError as cancelled:
            deferred = cancelled
        pending = [task for task in pending if not task.done()]
    return deferred


async def set_within(event: asyncio.Event, seconds: float) -> None:
    """Wait until an event is set, for at most ``seconds``."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()


class Supervisor:
    """Runs work, and stops waiting for it after a stop, even if it ignores its cancellation."""

    def __init__(self, *, grace_seconds: float) -> None:
        """Give cancelled work ``grace_seconds`` to end before it is abandoned."""
        self.grace_seconds = grace_seconds
        self._tasks: set[asyncio.Task[Any]] = set()

    async def run(
        self,
        work: Coroutine[Any, Any, Result],
        token: CancellationToken,
        *,
        late: Callable[[Result], None],
    ) -> Result:
        """Run ``work`` in its own task, and cancel it when the token is tripped.

        Work that ignores its cancellation for the grace period is abandoned. If it returns a result
        later, ``late`` is called with the result.

        Raises:
            DetachedError: the work did not end within the grace period after a stop.
            Stop: the work was cancelled by a stop and returned no result.
            asyncio.CancelledError: this task was cancelled, and the work with it.
        """
        loop = asyncio.get_running_loop()
        stopped = loop.create_future()

        def wake(_: object = None) -> None:
            if not stopped.done():
                stopped.set_result(None)

        task = asyncio.create_task(work, name="run")
        task.add_done_callback(wake)
        try:
            # The token may be tripped in any thread; ``stopped`` is also set when the task ends.
            with token.on_trip(lambda: loop.call_soon_threadsafe(wake)):
                await stopped
            if not task.done():
                task.cancel()
                await asyncio.wait({task}, timeout=self.grace_seconds)
        except asyncio.CancelledError:
            task.cancel()
            task.add_done_callback(forget_failure)
            # Further cancellations of this task must not shorten the grace period.
            await until_done((task,), self.grace_seconds)
            if not task.done():
                self._abandon(task, late)
            raise
        if not task.done() and token.stop is not None:
            self._abandon(task, late)
            raise DetachedError(token.stop)
        if task.cancelled():
            token.check()  # raise the stop that caused the cancellation
        return task.result()

    def _abandon(self, task: "asyncio.Task[Result]", late: Callable[[Result], None]) -> None:
        self._tasks.add(task)  # the event loop holds weak references to tasks only
        detach(task, late, on_done=lambda: self._tasks.discard(task))


def detach(
    task: "asyncio.Task[Result]",
    late: Callable[[Result], None],
    *,
    on_done: Callable[[], None] = lambda: None,
) -> None:
    """When a cancelled task ends, call ``late`` with its result, if any, and then ``over``."""

    def tell(ended: "asyncio.Task[Result]") -> None:
        if not ended.cancelled() and ended.exception() is None:
            late(ended.result())
        on_done()

    if task.done():
        tell(task)
    else:
        task.add_done_callback(tell)


class TimeLimit:
    """Enforces the time limit of a scope while a ``with`` block runs.

    The token is tripped when the limit passes, or immediately if it already has. Warnings are
    emitted at the warning thresholds. ``still_counts`` is called when the limit passes; if it
    returns False, because the block's work no longer counts, the token is not tripped.
    """

    __slots__ = ("_scope", "_still_counts", "_timer", "_token")

    def __init__(
        self,
        scope: Scope,
        token: CancellationToken,
        *,
        still_counts: Callable[[], bool] = lambda: True,
    ) -> None:
        self._scope = scope
        self._token = token
        self._still_counts = still_counts
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> None:
        limit = self._scope.budget.max_time_seconds
        if limit is None:
            return
        if self._scope.usage.time_elapsed_seconds >= limit:
            self._pass(1.0)
        self._wait(*self._scope.shares_to_warn_of(), 1.0)

    def __exit__(self, *ended: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _wait(self, share: float, *later: float) -> None:
        """Wait for a share of the limit to pass, then for the later ones, with a single timer."""
        limit, used = self._scope.budget.max_time_seconds, self._scope.usage.time_elapsed_seconds
        seconds = max(0.0, share * (limit or 0.0) - used)
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, self._pass, share, *later)

    def _pass(self, share: float, *later: float) -> None:
        if later:
            self._scope.warn_of_time(share)
            self._wait(*later)
        elif self._still_counts():
            self._token.trip(self._scope.time_limit_error())


def deadline_of(
    deadline: datetime | None, token: CancellationToken
) -> AbstractContextManager[None]:
    """Trip the token if the deadline passes during the block, or now if it has passed already."""
    return nullcontext() if deadline is None else _tripped_at(deadline, token)


@contextmanager
def _tripped_at(deadline: datetime, token: CancellationToken) -> Iterator[None]:
    seconds, stop = (deadline - datetime.now(UTC)).total_seconds(), DeadlineExceededError(deadline)
    if seconds <= 0:
        token.trip(stop)
    timer = asyncio.get_running_loop().call_later(max(0.0, seconds), token.trip, stop)
    try:
        yield
    finally:
        timer.cancel()
