"""The token through which a run learns that it must end."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import structlog

from caseworker.control.stops import CancelledError, HandOver, Stop

_log = structlog.get_logger(__name__)


class CancellationToken:
    """Carries at most one stop; safe to trip from any thread.

    The first stop wins, with one exception: a cancel request replaces a hand-over, because
    a run that was asked to stop must not go on elsewhere.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a callback may look at the token that calls it
        self.stop: Stop | None = None
        """The stop that was given, if any; :meth:`trip` gives one."""
        self._callbacks: dict[object, Callable[[], object]] = {}

    def cancel(self, reason: str | None = None, *, requested_by: str | None = None) -> None:
        """Ask whatever holds this token to end."""
        self.trip(CancelledError(reason, requested_by=requested_by))

    def trip(self, stop: Stop) -> None:
        """End whatever holds this token, for any reason that is a stop."""
        with self._lock:
            gives_way = isinstance(self.stop, HandOver) and isinstance(stop, CancelledError)
            if self.stop is not None and not gives_way:
                return
            self.stop = stop
            for callback in list(self._callbacks.values()):
                _call(callback)

    @property
    def is_cancelled(self) -> bool:
        """True once a stop was given."""
        return self.stop is not None

    def check(self) -> None:
        """Raise the stop that was given: :class:`CancelledError` if someone asked for it."""
        if self.stop is not None:
            raise self.stop.with_traceback(None)  # or it would grow with every check

    async def wait(self) -> None:
        """Wait until a stop is given."""
        loop = asyncio.get_running_loop()
        given = loop.create_future()

        def give() -> None:
            if not given.done():
                given.set_result(None)

        with self.on_trip(lambda: loop.call_soon_threadsafe(give)):
            await given

    @contextmanager
    def on_trip(self, callback: Callable[[], object]) -> Iterator[None]:
        """Call ``callback`` when a stop is given while the block runs, or at once if one was.

        It is called in the thread that gives the stop, never after the block, and must not wait.
        What it raises is logged and keeps the stop from nobody.
        """
        key = object()
        with self._lock:
            self._callbacks[key] = callback
            if self.stop is not None:
                _call(callback)
        try:
            yield
        finally:
            with self._lock:
                del self._callbacks[key]


def _call(callback: Callable[[], object]) -> None:
    try:
        callback()
    except Exception:
        _log.exception("stop.watcher_failed")


def is_being_cancelled() -> bool:
    """Return whether somebody cancels this very task.

    If not, an ``asyncio.CancelledError`` in it comes from something it waited for, and is a
    failure like any other.
    """
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0
