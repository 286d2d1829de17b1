"""The time limit of a request: its client gets a response even if the database is frozen.

The response does not wait for the handler. A write that has begun continues in the background, for
as long as its own grace period lasts.
"""

import asyncio
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any, Final

from starlette.types import ASGIApp, Receive, Scope, Send

from caseworker.platform.http.problems import UNAVAILABLE, ProblemError, problem_response

DEADLINE: Final = "caseworker.deadline"
"""ASGI scope key of the :class:`Deadline` of a request."""


class Deadline:
    """Responds to a request that takes too long, and cancels the task that handles it.

    Create it in that task. Routes that use the database start its time with :meth:`extend`. Lift it
    when the response starts.
    """

    def __init__(self, seconds: float, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond after ``seconds``, once the time has been started."""
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._seconds = seconds
        self._connection = scope, receive, send
        self._timer: asyncio.TimerHandle | None = None
        self._is_lifted = False
        self._responding: asyncio.Future[None] | None = None
        self._silent_seconds: Callable[[], float] = lambda: seconds
        self._max_silent_seconds = seconds
        self.form: Callable[[ProblemError], ASGIApp] = partial(problem_response, scope)
        """Function that converts the problem to a response."""

    @property
    def has_passed(self) -> bool:
        """Whether the client gets the response of this deadline."""
        return self._responding is not None

    def extend(self, seconds: float | None = None) -> None:
        """Allow at least ``seconds`` from now, by default those of the deadline."""
        until = self._loop.time() + (self._seconds if seconds is None else seconds)
        self._expire_at(until if self._timer is None else max(until, self._timer.when()))

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count the time of the block."""
        began = self._loop.time()
        self._stop()
        try:
            yield
        finally:
            if self._timer is not None:
                self._expire_at(self._timer.when() + self._loop.time() - began)

    def lift(self) -> None:
        """Remove the limit: the response has started, or the handler has other limits."""
        self._is_lifted = True
        self._stop()

    def count_only(self, silent_seconds: Callable[[], float]) -> None:
        """Respond only after the database has been silent for the time that is left.

        ``silent_seconds`` returns for how long it has been. A handler that calls a model may
        otherwise take longer than the deadline.
        """
        self._silent_seconds = silent_seconds
        self._max_silent_seconds = max(self.left_seconds, self._seconds / 4)

    @property
    def left_seconds(self) -> float:
        """Seconds until the response, also after the limit was removed."""
        return self._seconds if self._timer is None else self._timer.when() - self._loop.time()

    async def close(self) -> None:
        """Remove the limit, and wait until the response is sent if the deadline has passed."""
        self.lift()
        if self._responding is not None:
            await asyncio.wait((self._responding,))
        # The scope refers to this object: without a cycle, memory is freed at once.
        scope, *_ = self._connection
        scope.pop(DEADLINE, None)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _expire_at(self, moment: float) -> None:
        self._stop()
        if not (self._is_lifted or self.has_passed):
            self._timer = self._loop.call_at(moment, self._expire)

    def _expire(self) -> None:
        if (remaining := self._max_silent_seconds - self._silent_seconds()) > 0:
            self._expire_at(self._loop.time() + remaining)
            return
        late = (
            f"No response within {self._seconds:g} seconds (server.request_timeout_seconds). "
            f"{UNAVAILABLE.detail}"
        )
        response = self.form(ProblemError(UNAVAILABLE, late))
        sending = response(*self._connection)
        self._responding = asyncio.ensure_future(sending)
        if self._task is not None:
            self._task.cancel()


def extend_deadline(scope: MutableMapping[str, Any], seconds: float | None = None) -> None:
    """Extend the deadline of a request, if it has one; see :meth:`Deadline.extend`."""
    if (deadline := scope.get(DEADLINE)) is not None:
        deadline.extend(seconds)


@contextmanager
def paused_deadline(scope: MutableMapping[str, Any]) -> Iterator[None]:
    """Do not count the time of the block, if the request has a deadline."""
    deadline: Deadline | None = scope.get(DEADLINE)
    with nullcontext() if deadline is None else deadline.paused():
        yield


def lift_deadline(scope: MutableMapping[str, Any]) -> None:
    """Remove the deadline of a request, if it has one."""
    if (deadline := scope.get(DEADLINE)) is not None:
        deadline.lift()
