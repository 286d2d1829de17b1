"""The time limit of a request: its client gets a response even if the database is frozen.

The response does not wait for the handler. A write that has begun continues in the background, for
as long as its own grace period lasts.
"""

import asyncio
from collections.abc import Callable, MutableMapping
from functools import partial
from typing import Any, Final

from starlette.types import ASGIApp, Receive, Scope, Send

from caseworker.platform.http.problems import UNAVAILABLE, ProblemError, problem_response

DEADLINE: Final = "caseworker.deadline"
"""ASGI scope key of the :class:`Deadline` of a request."""


class Deadline:
    """Responds to a request that takes too long, and cancels the task that handles it.

    Create it in that task, and lift it when the response starts.
    """

    def __init__(self, seconds: float, scope: Scope, receive: Receive, send: Send) -> None:
        """Respond after ``seconds``."""
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        self._seconds = seconds
        self._connection = scope, receive, send
        self._timer = self._loop.call_later(seconds, self._expire)
        self._is_lifted = False
        self._responding: asyncio.Future[None] | None = None
        self._silent_seconds: Callable[[], float] = lambda: seconds
        self.form: Callable[[ProblemError], ASGIApp] = partial(problem_response, scope)
        """Function that converts the problem to a response."""

    @property
    def has_passed(self) -> bool:
        """Whether the client gets the response of this deadline."""
        return self._responding is not None

    def extend(self, seconds: float | None = None) -> None:
        """Allow at least ``seconds`` from now, by default as many as at the beginning."""
        from_now = self._seconds if seconds is None else seconds
        until = max(self._timer.when(), self._loop.time() + from_now)
        self.pause()
        if not (self._is_lifted or self.has_passed):
            self._timer = self._loop.call_at(until, self._expire)

    def pause(self) -> None:
        """Stop the time until it is extended."""
        self._timer.cancel()

    def count_only(self, silent_seconds: Callable[[], float]) -> None:
        """Respond only while the database has been silent for the time of the deadline.

        A handler that calls a model may take longer.
        """
        self._silent_seconds = silent_seconds

    def lift(self) -> None:
        """Remove the limit: the response has started, or the handler has limits of its own."""
        self._is_lifted = True
        self.pause()

    async def responded(self) -> None:
        """Wait until the response is sent, if the deadline has passed."""
        if self._responding is not None:
            await asyncio.wait((self._responding,))

    def _expire(self) -> None:
        if (left := self._seconds - self._silent_seconds()) > 0:
            self._timer = self._loop.call_later(left, self._expire)
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


def pause_deadline(scope: MutableMapping[str, Any]) -> None:
    """Stop the time of a request, if it has a deadline, until the deadline is extended."""
    if (deadline := scope.get(DEADLINE)) is not None:
        deadline.pause()


def lift_deadline(scope: MutableMapping[str, Any]) -> None:
    """Remove the deadline of a request, if it has one."""
    if (deadline := scope.get(DEADLINE)) is not None:
        deadline.lift()
