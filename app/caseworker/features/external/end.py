"""The end of a session: reported by its client, forced by a limit or a stop, or by silence."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from caseworker.core.budget.stops import Stop, StopCause, StopKind
from caseworker.engine.cancellation import CancellationToken
from caseworker.engine.report import RecordedFailureError
from caseworker.features.external.work import SessionWork
from caseworker.platform.logs.errors import message_of_error


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

    async def wait(self, work: SessionWork, idle_seconds: float) -> Report:
        """Wait until the client reports the end, or a limit is reached.

        Raises:
            Stop: a limit was reached, or the client sent nothing for ``idle_seconds``.
        """
        while not self._report.done():
            seconds, tasks = idle_seconds - work.idle_seconds(), work.tasks
            if seconds <= 0 and not tasks and work.is_busy:
                work.touch()  # look again after the idle time
                continue
            if seconds <= 0 and not tasks:
                self._reached = _abandoned(idle_seconds)
                raise self._reached
            await asyncio.wait(
                (self._report, *tasks),
                timeout=seconds if seconds > 0 else None,
                return_when=asyncio.FIRST_COMPLETED,
            )
        return self._report.result()


def reported(error_class: str, message: str) -> RecordedFailureError:
    """Return the error with which a client finishes its run."""
    return RecordedFailureError(message, error_class=error_class)


def _abandoned(seconds: float) -> Stop:
    reason = f"The client sent no call and no heartbeat for {seconds:g} seconds."
    return Stop(StopCause(kind=StopKind.ABANDONED, reason=reason))
