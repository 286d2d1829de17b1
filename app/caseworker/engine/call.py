"""Calls: their specification, results, failures, attempts and retries.

A call or step whose first attempt succeeds is a single node of the ExecutionGraph. When a second
attempt starts, both attempts become children of that node; the first one is added then, with its
real times.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal, Protocol, TypeVar

from caseworker.core.budget.budget import Dimension
from caseworker.core.budget.ledger import Room, Scope, as_estimated
from caseworker.core.budget.retry import RetryPolicy, verdict
from caseworker.core.budget.usage import NOTHING, Charge
from caseworker.core.trace.execution_graph import ExecutionGraph
from caseworker.core.trace.node import checked_usage
from caseworker.engine.step_path import StepPath
from caseworker.platform.logs.errors import message_of_error

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """The usage of one attempt; money in US dollars.

    Raises:
        ValueError: an amount is negative, or the cost is not finite.
    """

    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: Decimal | None = Decimal(0)
    """None if the price is not known."""
    estimated: bool = False
    """True if the provider did not report the usage, because its response was lost."""

    def __post_init__(self) -> None:
        checked_usage(self.cost_usd or 0, self.tokens_in, self.tokens_out)

    @property
    def tokens(self) -> int:
        """Input and output tokens together."""
        return self.tokens_in + self.tokens_out

    @property
    def charge(self) -> Charge:
        """The usage as a budget charge."""
        tokens = self.tokens
        if not tokens and not self.cost_usd:
            return NOTHING
        if self.cost_usd is None:
            spent: Charge = {Dimension.TOKENS: tokens, Dimension.UNPRICED_CALLS: 1}
        else:
            spent = {Dimension.TOKENS: tokens, Dimension.COST_USD: self.cost_usd}
        return as_estimated(spent) if self.estimated else spent


FREE = Spent()


@dataclass(slots=True)
class SpentSum:
    """The total usage of all attempts of a call so far."""

    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: Decimal | None = Decimal(0)
    """None if the price of an attempt is unknown."""
    estimated: dict[str, Any] = field(default_factory=dict)
    """The estimated part, under the same keys; empty if nothing was estimated."""

    def add(self, spent: Spent) -> None:
        """Add the usage of an attempt."""
        self.tokens_in += spent.tokens_in
        self.tokens_out += spent.tokens_out
        unknown = self.cost_usd is None or spent.cost_usd is None
        self.cost_usd = None if unknown else self.cost_usd + spent.cost_usd  # type: ignore[operator]
        if spent.estimated:
            of_it = self.estimated
            for name in ("tokens_in", "tokens_out"):
                of_it[name] = of_it.get(name, 0) + getattr(spent, name)
            cost = float(spent.cost_usd or 0)
            of_it["cost_usd"] = None if unknown else of_it.get("cost_usd", 0.0) + cost

    def usage(self) -> dict[str, Any]:
        """Return the totals as keyword arguments for ending a CallNode."""
        return {
            "cost_usd": self.cost_usd,
            "tokens_in": self.tokens_in,
            "tokens_out": self.tokens_out,
        }


class Turn(Protocol):
    """The rate slot of one attempt at a rate-limited model."""

    async def take(self, tokens: int) -> bool:
        """Acquire the slot for an attempt of at most ``tokens``; False if it must wait."""
        ...

    async def wait(self) -> None:
        """Wait after a refused ``take`` until a retry may succeed."""
        ...

    def step_aside(self) -> None:
        """Yield the rate slot while this attempt waits for budget."""
        ...

    def leave(self) -> None:
        """Stop waiting; the attempt is not made."""
        ...

    def settle(self, tokens: int) -> None:
        """Report the actual tokens of the attempt that held the slot."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSpec:
    """The specification of one call."""

    key: StepPath
    """The path of the call in its run; the same in every execution of the run."""
    kind: Literal["llm", "tool"]
    name: str
    model: str | None = None
    request_hash: str
    """Hash of the request; a recorded result is replayed only if its hash is equal."""
    once: Charge = field(default_factory=dict)
    """Charged once, regardless of the number of attempts."""
    per_attempt: Charge = field(default_factory=dict)
    """Charged for each attempt that was allowed to start."""
    estimate: Spent = FREE
    """The maximum usage of an attempt, which is reserved for it."""
    fit: Callable[[Room], Spent] | None = None
    """Shrinks the request to the capacity of the budget, at most to its minimum size, and returns
    the new estimate. None: ``estimate`` is fixed."""
    lost: Callable[[], Spent] | None = None
    """Returns the usage of an attempt that is interrupted now; None charges the full estimate."""
    external: bool = True
    """False if the call has no effect outside this process and costs nothing."""
    turn: Callable[[], Turn] | None = None
    """Creates the rate slot of an attempt; None: not rate-limited."""
    repeatable: bool = True
    """Whether a call with an unknown outcome may be repeated."""
    retry: RetryPolicy
    timeout_seconds: float | None = None
    """The timeout of one attempt."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    request: Mapping[str, Any] | None = None
    """The request as traces may show it; None stores nothing."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of one attempt: a JSON value and, if known, its usage."""

    value: Any
    spent: Spent | None = None
    """None is charged like a lost response."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Added to the metadata of the call's node."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The result of a call that succeeded, now or in an earlier execution of the run."""

    value: Any
    """The JSON value of the reply."""
    node_id: str
    """ID of its CallNode, the parent of calls that the result requests."""


class AttemptError(Exception):
    """One attempt failed; the message is safe to show."""

    def __init__(
        self,
        message: str,
        *,
        error_class: str,
        retryable: bool,
        retry_after_seconds: float | None = None,
        spent: Spent | None = None,
        told: str | None = None,
        raw_reply: str | None = None,
    ) -> None:
        super().__init__(message)
        self.error_class = error_class
        self.retryable = retryable
        self.told = told
        """The error message for a model; None uses the message."""
        self.raw_reply = raw_reply
        """The start of an invalid response, as far as the payload mode allows storing it."""
        self.retry_after_seconds = retry_after_seconds
        self.spent = spent
        """The usage of the attempt; None if unknown, which is charged like a lost response."""


class CallFailedError(Exception):
    """A call failed after all its attempts."""

    def __init__(
        self,
        message: str,
        *,
        error_class: str,
        attempts: int,
        retry_after_seconds: float | None = None,
        node_id: str = "",
        told: str | None = None,
    ) -> None:
        super().__init__(message)
        self.told = told or message
        """The error message for a model."""
        self.error_class = error_class
        self.attempts = attempts
        self.node_id = node_id
        """ID of the call's CallNode."""
        self.retry_after_seconds = retry_after_seconds
        """The ``Retry-After`` of the last attempt, if any."""


class OutcomeUnknownError(Exception):
    """An earlier execution made this call; it may have taken effect and must not be repeated."""


Attempt = Callable[[], Awaitable[Reply]]


@dataclass(frozen=True, slots=True)
class Retries:
    """Runs the attempts of all calls and steps of a run, with back-off between them."""

    jitter: Callable[[], float]
    """Draws a random number from [-1, 1]."""
    deadline_in: Callable[[], float | None] = lambda: None
    """Returns the seconds until the run's deadline; None without a deadline."""

    async def run(
        self,
        attempt: Callable[[int], Awaitable[Result]],
        policy: RetryPolicy,
        scope: Scope,
        *,
        failed: Callable[[Exception, int], bool],
        before: tuple[int, Exception | None] | None = None,
    ) -> Result:
        """Make attempts until one succeeds or the policy allows no more.

        Does not back off beyond a time limit or deadline. ``attempt`` gets its number, from 1.
        ``failed`` gets each failure and the number of attempts so far; it returns whether to retry.
        ``before`` is the number of attempts already made and the last failure. Its failure is None
        if an earlier execution had already started the next attempt: then no back-off is due.

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
            retry_after_seconds=_seconds_asked(failure),
            seconds_left=min((left for left in ends if left is not None), default=math.inf),
        )


def _seconds_asked(failure: Exception) -> float | None:
    """Return the ``retry_after_seconds`` of a failure, 0 if unset, None if not a number."""
    try:
        seconds = float(getattr(failure, "retry_after_seconds", None) or 0)
    except Exception:  # user-defined errors: any type, or a property that raises
        return None
    return None if math.isnan(seconds) else seconds


class AttemptLog:
    """Records the attempts of one call or step in the ExecutionGraph; use ``with`` per attempt."""

    def __init__(
        self,
        graph: ExecutionGraph,
        call_node: str,
        *,
        failures: type[Exception] = AttemptError,
        said: Callable[[Exception], str] = str,
    ) -> None:
        """Record attempts below ``call_node``.

        ``failures`` is the class of failures that may be retried; ``said`` formats one for display.
        """
        self._graph = graph
        self._call_node = self._node = call_node
        self._failures = failures
        self._said = said
        self._started_ms = 0
        self._first: dict[str, Any] | None = None
        self.made = 0
        """The number of attempts so far, including those of earlier executions."""
        self.of_fallback = False
        """Whether the next attempt is the step's fallback."""

    def __enter__(self) -> None:
        self.made += 1
        if self.made == 1:
            self._started_ms = self._graph.now_ms()
        else:
            self.add_first()
            about: dict[str, object] = {"attempt": self.made}
            if self.of_fallback:
                about["fallback"] = True
            self._node = self._graph.begin_node(
                self._call_node, "system", "attempt", metadata=about
            )
        self._graph.mark_running(self._node)

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if self.made == 1:
            if isinstance(error, self._failures):
                self._keep_first(error)
        elif error is None:
            self._graph.mark_success(self._node, 0)
        elif isinstance(error, self._failures):
            self._graph.mark_failure(self._node, _class_of(error), self._said(error))
        elif isinstance(error, Exception):
            self._graph.mark_failure(self._node, type(error).__name__, message_of_error(error))
        else:
            self._graph.mark_halt(self._node, str(error) or type(error).__name__)

    def first_failed(self, failure: Exception) -> None:
        """Record a failed first attempt that lasted from the start of the call until now."""
        self.made = 1
        self._started_ms = self._graph.node(self._call_node)["start_ts_ms"]
        self._keep_first(failure)

    def _keep_first(self, failure: Exception) -> None:
        self._first = {
            "start_ts_ms": self._started_ms,
            "end_ts_ms": self._graph.now_ms(),
            "error_class": _class_of(failure),
            "stop_reason": self._said(failure),
        }

    def add_first(self) -> None:
        """Add the node of a failed first attempt if it was not added yet."""
        first, self._first = self._first, None
        if first is not None:
            about = {"attempt": 1}
            self._graph.add_ended(
                self._call_node, "system", "attempt", status="fail", metadata=about, **first
            )


def _class_of(failure: Exception) -> str:
    return failure.error_class if isinstance(failure, AttemptError) else type(failure).__name__
