"""The cancellation token, through which a run is stopped.

See docs/internals.md, "Stops".
"""

import asyncio
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import structlog

from caseworker.core.budget.stops import CancelledError, HandOver, Stop

_log = structlog.get_logger(__name__)


@dataclass(eq=False)
class CancellationToken:
    """Holds the stop of a run, if any; any thread may set it.

    The first stop wins, with one exception: a cancel request replaces a hand-over, because another
    worker must not resume a cancelled run.

    While a resumed run repeats what its journal has, its token is *held*: a stop is delayed until
    nothing recorded is left, so that the partial result holds all recorded work. A hand-over is
    not delayed.
    """

    stop: Stop | None = field(init=False, default=None)
    """The stop of the run; None until :meth:`trip` has set one."""
    is_delaying: bool = field(init=False, default=False)
    """Whether stops are delayed."""
    delayed: Stop | None = field(init=False, default=None)
    """The stop that :meth:`release` will set; None if there is none."""
    _on_delay: Callable[[], object] | None = field(init=False, default=None)
    _callbacks: dict[object, Callable[[], object]] = field(init=False, default_factory=dict)
    # Reentrant: a callback may use the token that calls it.
    _lock: threading.RLock = field(init=False, default_factory=threading.RLock)

    def cancel(self, reason: str | None = None, *, requested_by: str | None = None) -> None:
        """Stop the run because of a cancel request."""
        self.trip(CancelledError(reason, requested_by=requested_by))

    def trip(self, stop: Stop) -> None:
        """Set the stop and call the callbacks; no effect if a stop that takes precedence is set."""
        with self._lock:
            if self.is_delaying and not isinstance(stop, HandOver):
                self.delayed = self.delayed or stop
                if self._on_delay is not None:
                    _call(self._on_delay)
                return
            gives_way = isinstance(self.stop, HandOver) and isinstance(stop, CancelledError)
            if self.stop is not None and not gives_way:
                return
            self.stop = stop
            for callback in list(self._callbacks.values()):
                _call(callback)

    def hold(self) -> None:
        """Delay stops, except hand-overs, until :meth:`release`."""
        self.is_delaying = True

    def on_delay(self, callback: Callable[[], object]) -> None:
        """Call ``callback`` when a stop is delayed, or now; it runs in the stopping thread."""
        with self._lock:
            self._on_delay = callback
            if self.delayed is not None:
                _call(callback)

    def release(self) -> None:
        """Delay stops no longer, and set the delayed one, if any."""
        with self._lock:
            self.is_delaying = False
            delayed, self.delayed = self.delayed, None
            if delayed is not None:
                self.trip(delayed)

    @property
    def is_cancelled(self) -> bool:
        """Whether a stop of any kind is set, not only a cancel request."""
        return self.stop is not None

    def check(self) -> None:
        """Raise the stop if one is set; for a cancel request, that is a :class:`CancelledError`."""
        if self.stop is not None:
            raise self.stop.with_traceback(None)  # else the traceback grows with every check

    async def wait(self) -> None:
        """Wait until a stop is set."""
        loop = asyncio.get_running_loop()
        tripped = loop.create_future()

        def wake() -> None:
            if not tripped.done():  # the waiting task may have been cancelled
                tripped.set_result(None)

        with self.on_trip(lambda: loop.call_soon_threadsafe(wake)):
            await tripped

    def on_trip(self, callback: Callable[[], object]) -> AbstractContextManager[None]:
        """Register a callback that is called when a stop is set while the block runs.

        If a stop is already set, ``callback`` is called immediately. It runs in the thread that
        sets the stop, never after the block has ended, and must not block. If it raises, the error
        is logged and the other callbacks still run.
        """
        return _Registration(self, callback)


class _Registration:
    """A callback that is registered while a block runs; smaller than a generator."""

    __slots__ = ("_callback", "_token")

    def __init__(self, token: CancellationToken, callback: Callable[[], object]) -> None:
        self._token = token
        self._callback = callback

    def __enter__(self) -> None:
        token = self._token
        # Register and check under the lock, so that a concurrent trip is not missed or doubled.
        with token._lock:
            token._callbacks[self] = self._callback
            if token.stop is not None:
                _call(self._callback)

    def __exit__(self, *ended: object) -> None:
        with self._token._lock:
            del self._token._callbacks[self]


def _call(callback: Callable[[], object]) -> None:
    try:
        callback()
    except Exception:
        _log.exception("stop.watcher_failed")


def is_being_cancelled() -> bool:
    """Return whether the current task itself is being cancelled.

    If not, an ``asyncio.CancelledError`` in it comes from an awaited task or future, and counts as
    an ordinary failure.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
