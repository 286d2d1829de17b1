"""The attempts at one piece of work, a call or a step: the loop that makes them, and its record.

Work that succeeds at once is one node of the ExecutionGraph. Only when a second attempt begins do
both become children of that node: the first is added then, with its real times.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from app.control.ledger import Scope
from app.control.retry import RetryPolicy, verdict
from app.engine.call import AttemptError
from app.trace.execution_graph import ExecutionGraph

Result = TypeVar("Result")

BROKEN = "The call broke."
"""Said of an error that is none of a call's own: its message could hold anything."""


@dataclass(frozen=True, slots=True)
class Retries:
    """Makes the attempts of one run: the one place that waits between them."""

    jitter: Callable[[], float]
    """Draws from [-1, 1]."""
    deadline_in: Callable[[], float | None] = lambda: None
    """Returns the seconds until the run's deadline; None if it has none."""

    async def run(
        self,
        attempt: Callable[[int], Awaitable[Result]],
        policy: RetryPolicy,
        scope: Scope,
        *,
        failed: Callable[[Exception, int], bool],
        before: tuple[int, Exception] | None = None,
    ) -> Result:
        """Make attempts until one succeeds or the policy gives up; no wait passes a limit of time.

        ``attempt`` gets its number, from 1. ``failed`` is called with each failure and the number
        of attempts so far, and returns whether a further one could help. ``before`` is how many
        attempts were made elsewhere, and the failure of the last one.

        Raises:
            Exception: the last failure.
        """
        made, failure = (0, None) if before is None else before
        del before
        try:
            while True:
                if failure is None:
                    made += 1
                    try:
                        return await attempt(made)
                    except Exception as error:
                        failure = error
                delay = (
                    self._verdict(policy, scope, failure, made) if failed(failure, made) else None
                )
                if delay is None:
                    raise failure
                failure = None
                await asyncio.sleep(delay)
        finally:
            del failure  # its traceback holds this frame, which must not keep it alive

    def _verdict(
        self, policy: RetryPolicy, scope: Scope, failure: Exception, made: int
    ) -> float | None:
        ends = (scope.remaining_seconds(), self.deadline_in())
        return verdict(
            policy,
            failed_attempts=made,
            jitter=self.jitter(),
            retry_after_seconds=getattr(failure, "retry_after_seconds", None),
            seconds_left=min((left for left in ends if left is not None), default=math.inf),
        )


class AttemptLog:
    """Records the attempts of one call."""

    def __init__(
        self,
        graph: ExecutionGraph,
        call_node: str,
        *,
        failures: type[Exception] = AttemptError,
        said: Callable[[Exception], str] = str,
    ) -> None:
        """Record attempts below ``call_node``.

        ``failures`` are those after which there may be another attempt; ``said`` returns what
        may be shown of one.
        """
        self._graph = graph
        self._call_node = call_node
        self._failures = failures
        self._said = said
        self._number = 0
        self._first: dict[str, Any] | None = None

    async def make(self, attempt: Callable[[], Awaitable[Result]]) -> Result:
        """Make one attempt and record it."""
        self._number += 1
        if self._number == 1:
            return await self._make_first(attempt)
        self.add_first()
        node = self._graph.begin_node(
            self._call_node, "system", "attempt", metadata={"attempt": self._number}
        )
        self._graph.mark_running(node)
        try:
            result = await attempt()
        except self._failures as failure:
            self._graph.mark_failure(node, _class_of(failure), self._said(failure))
            raise
        except Exception as error:
            self._graph.mark_failure(node, type(error).__name__, BROKEN)
            raise
        except BaseException as stop:
            self._graph.mark_halt(node, str(stop) or type(stop).__name__)
            raise
        self._graph.mark_success(node, 0)
        return result

    async def _make_first(self, attempt: Callable[[], Awaitable[Result]]) -> Result:
        started = self._graph.now_ms()
        self._graph.mark_running(self._call_node)
        try:
            return await attempt()
        except self._failures as failure:
            self._keep_first(failure, started)
            raise

    def first_failed(self, failure: Exception) -> None:
        """Say that the first attempt was made, from the call's begin until now, and failed."""
        self._number = 1
        self._keep_first(failure, self._graph.node(self._call_node)["start_ts_ms"])

    def _keep_first(self, failure: Exception, started_ms: int) -> None:
        self._first = {
            "start_ts_ms": started_ms,
            "end_ts_ms": self._graph.now_ms(),
            "error_class": _class_of(failure),
            "stop_reason": self._said(failure),
        }

    def went_before(self, count: int) -> None:
        """Say that so many attempts were made, and recorded, by an earlier execution."""
        self._number = count

    def add_first(self) -> None:
        """Add the first attempt, if it failed and is not there yet."""
        first, self._first = self._first, None
        if first is None:
            return
        self._graph.add_ended(
            self._call_node, "system", "attempt", status="fail", metadata={"attempt": 1}, **first
        )


def _class_of(failure: Exception) -> str:
    return failure.error_class if isinstance(failure, AttemptError) else type(failure).__name__
