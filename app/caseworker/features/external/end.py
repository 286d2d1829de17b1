"""The life of a session: its calls in flight, its signs of life, and its end.

The end is reported by the client, or forced by a limit, a stop or silence.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from caseworker.core.budget.stops import Stop, StopCause, StopKind
from caseworker.engine.activity import Activity
from caseworker.engine.cancellation import CancellationToken
from caseworker.engine.report import RecordedFailureError
from caseworker.engine.step_path import StepPath
from caseworker.engine.supervision import forget_failure, until_done
from caseworker.platform.logs.errors import message_of_error

T = TypeVar("T")


class SessionWork:
    """The calls of a session in flight, and the idle time of its client.

    A child's sign of life is one of its ancestors. A parent is not idle while a call of a child is
    in flight, and is released only after its children.
    """

    def __init__(
        self, run_id: str, activity: Activity, parent: "tuple[SessionWork, StepPath] | None"
    ) -> None:
        """``activity`` is that of the run; ``parent`` has the path of the run in its parent."""
        self._run_id = run_id
        self._activity = activity
        self._parent = None if parent is None else parent[0]
        self._open_children: set[SessionWork] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._active_at = asyncio.get_running_loop().time()
        if parent is not None:  # a parent is released after its children
            work, path = parent
            work._open_children.add(self)
            work._activity.working[self] = path

    @property
    def depth(self) -> int:
        """Number of the run's ancestors."""
        return 0 if self._parent is None else self._parent.depth + 1

    @property
    def is_held(self) -> bool:
        """Whether no call can start, because the process releases its runs."""
        return self._activity.is_held

    @property
    def tasks(self) -> Collection["asyncio.Task[Any]"]:
        """The calls of this session in flight."""
        return tuple(self._tasks)

    @property
    def is_busy(self) -> bool:
        """Whether a call of the run or of a child is in flight."""
        return bool(self._tasks) or any(child.is_busy for child in self._open_children)

    def touch(self) -> None:
        """Note a sign of life of the client, which is also one of its parents."""
        self._active_at = asyncio.get_running_loop().time()
        if self._parent is not None:
            self._parent.touch()

    def idle_seconds(self) -> float:
        """Return the time since the last sign of life."""
        return asyncio.get_running_loop().time() - self._active_at

    def start(
        self, work: Coroutine[Any, Any, T], path: StepPath, on_last: Callable[[], None]
    ) -> "asyncio.Task[T]":
        """Work for the client in a task; the run is not idle until the task ends.

        ``path`` is the path of the call that the task makes. ``on_last`` is called after the end of
        the task if no other call is in flight then.
        """

        def on_end(task: "asyncio.Task[T]") -> None:
            forget_failure(task)
            self._tasks.discard(task)
            del self._activity.working[task]
            self._activity.changed()
            self.touch()
            if not self._tasks:
                on_last()

        task = asyncio.create_task(work, name=f"gateway {self._run_id}")
        self._tasks.add(task)
        self._activity.working[task] = path
        task.add_done_callback(on_end)
        return task

    def cancel(self, except_for: Collection["asyncio.Task[Any]"] = ()) -> None:
        """Cancel the calls in flight."""
        for task in self._tasks.difference(except_for):
            task.cancel()

    @asynccontextmanager
    async def waits(self, path: StepPath) -> AsyncIterator[None]:
        """During the block, record that the run waits for its client.

        This keeps the run from being suspended.
        """
        self._activity.working[self] = path  # no approval suspends the run of a client
        async with self._activity.waits(path):
            yield

    async def close(self, grace_seconds: float) -> None:
        """Cancel the calls in flight and wait up to ``grace_seconds`` for them.

        The session no longer counts as work of its parent.
        """
        if (parent := self._parent) is not None:
            parent._open_children.discard(self)
            parent._activity.working.pop(self, None)
            parent._activity.changed()
        self.cancel()
        await until_done(self.tasks, grace_seconds)


class RunEndedError(Exception):
    """The run has ended or was stopped, so that it takes no more calls.

    ``stop`` is its stop or the stored cause of its end; None if the client has finished it.
    """

    def __init__(self, stop: Stop | StopCause | None) -> None:
        super().__init__()
        self.stop = stop


@dataclass(frozen=True, slots=True)
class Report:
    """The end that a client reported: an output, or an error."""

    output: Any = None
    error: Exception | None = None


class SessionEnd:
    """The end of a session; the first one decides."""

    def __init__(self, token: CancellationToken) -> None:
        """``token`` holds the stop of the run."""
        self._token = token
        self._report: asyncio.Future[Report] = asyncio.get_running_loop().create_future()
        """The end that the client reported, or the limit that was reached."""
        self._reached: Stop | None = None
        """The limit or the error that refuses further calls, while those in flight may continue."""
        self._is_closed = False

    @property
    def stop(self) -> Stop | None:
        """The stop of the run, or the limit that it has reached; None if it may continue."""
        return self._token.stop or self._reached

    @property
    def is_open(self) -> bool:
        """Whether calls can be made: the step has no stop and has not ended."""
        return self.stop is None and not self._is_closed

    def check(self) -> None:
        """Raise the limit that the run has reached, if any."""
        if self._reached is not None:
            raise self._reached

    def report(self, output: Any, error: Exception | None) -> None:
        """End the run with an output or an error."""
        if not self._report.done():
            self._report.set_result(Report(output, error))
            if error is not None:
                reason = message_of_error(error)
                self._reached = Stop(StopCause(kind=StopKind.ERROR, reason=reason))

    def reach(self, limit: Stop) -> None:
        """Refuse further calls; calls in flight continue, because they are paid."""
        # The run ends only with its last call (``halt_if_reached``): a reply that the client has
        # received whole must also be in the journal.
        self._reached = limit

    def halt_if_reached(self) -> None:
        """End the run if it has reached a limit; the last call in flight has ended."""
        if self._reached is not None and not self._report.done():
            self._report.set_exception(self._reached)
            self._report.exception()  # mark as retrieved: the run may have ended already

    def on_end(self, callback: Callable[[], None]) -> None:
        """Call ``callback`` soon after the client's report, or after a limit has ended the run."""

        def ended(report: "asyncio.Future[Report]") -> None:
            report.exception()  # mark as retrieved
            callback()

        self._report.add_done_callback(ended)

    def close(self) -> None:
        """Refuse further calls."""
        self._is_closed = True

    async def wait(self, work: SessionWork, idle_seconds: float, *, completes: bool) -> Report:
        """Wait until the client reports the end, or a limit is reached.

        If the client sends nothing for ``idle_seconds``, the run completes without an output if
        ``completes``, or fails.

        Raises:
            Stop: a limit was reached, or the client sent nothing for ``idle_seconds``.
        """
        while not self._report.done():
            seconds, tasks = idle_seconds - work.idle_seconds(), work.tasks
            if seconds <= 0 and not tasks and work.is_busy:
                work.touch()  # look again after the idle time
                continue
            if seconds <= 0 and not tasks and completes:
                self._is_closed = True  # at once, so that no call starts that would be cancelled
                return Report()
            if seconds <= 0 and not tasks:
                self._reached = _abandoned(idle_seconds)
                raise self._reached
            await asyncio.wait(
                (self._report, *tasks),
                timeout=seconds if seconds > 0 else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
        return self._report.result()


def client_error(error_class: str, message: str) -> RecordedFailureError:
    """Return the error that a client reported when it finished its run."""
    return RecordedFailureError(message, error_class=error_class)


def _abandoned(seconds: float) -> Stop:
    reason = f"The client sent no call and no heartbeat for {seconds:g} seconds."
    return Stop(StopCause(kind=StopKind.ABANDONED, reason=reason))
