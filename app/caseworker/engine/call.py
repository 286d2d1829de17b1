"""Calls: their interface, results, failures, usage and attempts.

A call or step whose first attempt succeeds is a single node of the ExecutionGraph. When a second
attempt starts, both attempts become children of that node. The node of the first attempt is added
only then, with its actual times.

See docs/internals.md, "The journal and its barrier".
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, ClassVar, Literal, Protocol

from caseworker.core.budget.budget import ESTIMATED_OF, Dimension
from caseworker.core.budget.ledger import FreeAmounts, Scope
from caseworker.core.budget.retry import GiveUp, Retry, RetryPolicy, decide_retry
from caseworker.core.budget.usage import Charge, CheckedCharge, checked, sum_of
from caseworker.core.trace.execution_graph import ExecutionGraph
from caseworker.core.trace.node import ESTIMATED
from caseworker.engine.ports import IF_LOST, CallOutcome, Recorded
from caseworker.engine.step_path import StepPath
from caseworker.platform.logs.errors import class_name, message_of_error


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """The usage of one attempt: integers from 0, and a cost in US dollars."""

    tokens_in: int | None = None
    """Number of input tokens; None if the attempt counts none, or if its request was not sent."""
    tokens_out: int | None = None
    cost_usd: Decimal | None = Decimal(0)
    """Cost in US dollars; None if the price is unknown."""
    estimated: bool = False
    """True if the usage is an estimate, because the response with the actual usage was lost."""

    @property
    def tokens(self) -> int:
        """Number of input and output tokens together."""
        return (self.tokens_in or 0) + (self.tokens_out or 0)

    def charge(self, *more: Charge) -> CheckedCharge:
        """Return the charge for this usage plus further valid charges."""
        total = CheckedCharge()
        if (tokens := self.tokens) or self.cost_usd:
            total[Dimension.TOKENS] = tokens
            if self.cost_usd is None:
                total[Dimension.UNPRICED_CALLS] = 1
            else:
                total[Dimension.COST_USD] = self.cost_usd
            if self.estimated:
                total |= {ESTIMATED_OF[d]: total[d] for d in ESTIMATED_OF if total.get(d)}
        for charge in more:
            for dimension, amount in charge.items():
                total[dimension] = total.get(dimension, 0) + amount  # type: ignore[operator]
        return total


FREE = Spent()


@dataclass(slots=True)
class SpentSum:
    """The total usage and charge of all attempts of a call so far."""

    tokens_in: int | None = None
    """Number of input tokens; None if no attempt counted any."""
    tokens_out: int | None = None
    cost_usd: Decimal | None = Decimal(0)
    """Cost in US dollars; None if the price of any attempt is unknown."""
    estimated: Mapping[str, Any] = field(default_factory=dict)
    """Estimated part of the usage, under the same keys; empty if nothing was estimated."""

    charge: Charge = field(default_factory=CheckedCharge, compare=False)

    def add(self, spent: Spent, charge: Charge) -> None:
        """Add the usage of one attempt, and its charge."""
        self.charge = checked(sum_of((self.charge, charge))) if self.charge else charge
        if spent.tokens_in is not None:
            self.tokens_in = (self.tokens_in or 0) + spent.tokens_in
        if spent.tokens_out is not None:
            self.tokens_out = (self.tokens_out or 0) + spent.tokens_out
        unknown = self.cost_usd is None or spent.cost_usd is None
        self.cost_usd = None if unknown else self.cost_usd + spent.cost_usd  # type: ignore[operator]
        if spent.estimated:
            before, cost = self.estimated, float(spent.cost_usd or 0)
            self.estimated = {
                "tokens_in": before.get("tokens_in", 0) + (spent.tokens_in or 0),
                "tokens_out": before.get("tokens_out", 0) + (spent.tokens_out or 0),
                "cost_usd": None if unknown else before.get("cost_usd", 0.0) + cost,
            }

    def if_lost(self) -> Mapping[str, Any] | None:
        """Return the journal value of a call in flight with this usage; None for no usage."""
        if self == SpentSum():
            return None
        lost = {
            "cost_usd": None if self.cost_usd is None else str(self.cost_usd),
            "tokens_in": self.tokens_in,
            "tokens_out": self.tokens_out,
            ESTIMATED: self.estimated,
        }
        return {IF_LOST: lost}


class RateSlot(Protocol):
    """One attempt's permission to call a rate-limited model, or its position in the queue."""

    async def take(self, tokens: int) -> bool:
        """Acquire the slot for an attempt of at most ``tokens``; return False if it must wait."""
        ...

    async def wait(self) -> None:
        """Wait until a slot may be free, after :meth:`take` returned False."""
        ...

    def step_aside(self) -> None:
        """Let the next call in the queue proceed, while this attempt waits for budget."""
        ...

    def leave(self) -> None:
        """Leave the queue, because the attempt will not be made."""
        ...

    def settle(self, tokens: int) -> None:
        """Report how many tokens the attempt actually used."""
        ...


@dataclass(kw_only=True, eq=False)
class Call(ABC):
    """Base class of calls: defines identity, charges, limits and retries, and makes attempts."""

    key: StepPath
    """Path of the call in its run; it is the same in every execution of the run."""
    kind: Literal["llm", "tool", "system"]
    name: str
    model: str | None = None
    request_hash: str
    """Hash of the request. A recorded result is replayed only if its request had the same hash."""
    per_call: Charge = field(default_factory=dict)
    """Charge for the call as a whole, regardless of the number of attempts."""
    per_attempt: Charge = field(default_factory=dict)
    """Charge for each attempt that was allowed to start."""
    is_charged_first: ClassVar[bool] = False
    """Whether an attempt is charged when it starts, so that it reserves nothing while it waits."""
    external: bool = True
    """Whether the call has an effect outside this process or costs anything."""
    repeatable: bool = True
    """Whether the call may be repeated if its outcome is unknown."""
    retry: RetryPolicy
    timeout_seconds: float | None = None
    """Timeout of one attempt in seconds; None means no timeout."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    trace_request: Mapping[str, Any] | None = None
    """Displayable form of the request, for traces; None stores no request."""
    node_id: str = field(init=False, default="")
    """ID of the call's CallNode, from its creation on."""

    def maximum(self, free: FreeAmounts) -> Spent | None:
        """Return the maximum usage of the next attempt by a bound that always holds.

        Returns None if there is none, or if it does not fit the free budget in ``free``; then
        :meth:`estimate` counts.
        """
        return None

    def estimate(self, free: FreeAmounts) -> Spent:
        """Fit the next attempt into the free budget, and return its maximum usage.

        ``free`` holds the free amounts of the limited dimensions. A request that cannot shrink that
        far keeps its minimum size, whose usage may exceed the free budget.
        """
        return FREE

    def rate_slot(self) -> "RateSlot | None":
        """Return a new position in the rate-limit queue for an attempt; None without a limit."""
        return None

    @abstractmethod
    async def send(self, attempt: int) -> "Reply":
        """Make one attempt; ``attempt`` is its number in this execution of the run, from 1.

        Raises:
            AttemptError: the attempt failed.
        """

    def lost(self) -> Spent:
        """Return the usage to charge if the current attempt is interrupted now."""
        return FREE


@dataclass(frozen=True, slots=True)
class Reply:
    """The result of one attempt: a JSON value and, if known, its usage."""

    value: Any
    spent: Spent | None = None
    """Usage of the attempt. None means unknown, which is charged like a lost response."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Metadata to add to the call's node."""


@dataclass(frozen=True, slots=True)
class Answered:
    """The result of a call that succeeded, now or in an earlier execution of the run."""

    value: Any
    """Result of the call as a JSON value."""
    node_id: str
    """ID of the call's CallNode, which is the parent of the calls that the result requests."""


class AttemptError(Exception):
    """One attempt at a call failed; the message is safe to show."""

    def __init__(
        self,
        message: str,
        *,
        error_class: str,
        retryable: bool,
        retry_after_seconds: float | None = None,
        spent: Spent | None = None,
        message_for_model: str | None = None,
        raw_reply: str | None = None,
    ) -> None:
        super().__init__(message)
        self.error_class = error_class
        self.retryable = retryable
        self.message_for_model = message_for_model
        """Error message to show to a model, if it differs from the exception's own message."""
        self.raw_reply = raw_reply
        """Start of an invalid response, as far as the payload mode allows storing it."""
        self.retry_after_seconds = retry_after_seconds
        self.spent = spent
        """Usage of the attempt. None means unknown, which is charged like a lost response."""

    def to_json(self, attempts: int) -> dict[str, Any]:
        """Return the journal value of a call that failed in its last attempt."""
        optional = {"told": self.message_for_model, "raw_reply": self.raw_reply}
        return {
            "error_class": self.error_class,
            "message": str(self),
            "attempts": attempts,
            **{name: value for name, value in optional.items() if value is not None},
        }


class CallFailedError(Exception):
    """A call failed, and no further attempt is allowed."""

    def __init__(
        self,
        message: str,
        *,
        error_class: str,
        attempts: int,
        retry_after_seconds: float | None = None,
        node_id: str = "",
        message_for_model: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message_for_model = message_for_model or message
        """Error message to show to a model."""
        self.error_class = error_class
        self.attempts = attempts
        self.node_id = node_id
        """ID of the call's CallNode."""
        self.retry_after_seconds = retry_after_seconds
        """Delay in seconds from the ``Retry-After`` of the last attempt; None without that
        header."""


def recorded_result(recorded: Recorded) -> Answered:
    """Build the result of a call from its journal record.

    Raises:
        CallFailedError: the recorded call failed.
    """
    if recorded.outcome is CallOutcome.RESULT:
        return Answered(recorded.value, recorded.node_id)
    raise call_failed(recorded.value, recorded.node_id)


def call_failed(
    value: Mapping[str, Any], node_id: str, retry_after_seconds: float | None = None
) -> CallFailedError:
    """Build the error for a failed call from its journal value."""
    return CallFailedError(
        value["message"],
        error_class=value["error_class"],
        attempts=value["attempts"],
        retry_after_seconds=retry_after_seconds,
        node_id=node_id,
        message_for_model=value.get("told"),
    )


class OutcomeUnknownError(Exception):
    """An earlier execution made this call. It may have taken effect, so it must not be repeated."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Decides on retries of the calls and steps of a run, and on the delays before them."""

    jitter: Callable[[], float]
    """Function that draws a random number from [-1, 1]."""
    deadline_in: Callable[[], float | None] = lambda: None
    """Function that returns the seconds until the run's deadline; None if it has no deadline."""

    def decide(
        self, policy: RetryPolicy, scope: Scope, failure: Exception, failed_attempts: int
    ) -> Retry | GiveUp:
        """Decide whether to retry after the failed attempt number ``failed_attempts``.

        No delay may exceed a time limit or the deadline.
        """
        ends = (scope.remaining_seconds(), self.deadline_in())
        return decide_retry(
            policy,
            failed_attempts=failed_attempts,
            jitter=self.jitter(),
            retry_after_seconds=_retry_after_seconds(failure),
            seconds_left=min(
                (seconds for seconds in ends if seconds is not None), default=math.inf
            ),
        )


def _retry_after_seconds(failure: Exception) -> float | None:
    """Return the ``retry_after_seconds`` of a failure, 0 if unset, None if not a number."""
    try:
        seconds = float(getattr(failure, "retry_after_seconds", None) or 0)
    except Exception:  # user-defined errors: any type, or a property that raises
        return None
    return None if math.isnan(seconds) else seconds


class AttemptLog:
    """Records the attempts at one call or step in the ExecutionGraph, once the first has failed."""

    def __init__(self, graph: ExecutionGraph, call_node: str) -> None:
        """Record attempts below ``call_node``."""
        self._graph = graph
        self._call_node = call_node
        self._first: dict[str, Any] | None = None
        self._node: str | None = None
        """Node of the current attempt; None while there is none."""

    def first_failed(self, failure: Exception, started_ms: int) -> None:
        """Record that the first attempt failed; it lasted from ``started_ms`` until now."""
        error_class, stop_reason = _class_and_message(failure)
        self._first = {
            "start_ts_ms": started_ms,
            "end_ts_ms": self._graph.now_ms(),
            "error_class": error_class,
            "stop_reason": stop_reason,
        }

    def add_first(self) -> None:
        """Add the node of the first attempt, if that attempt failed and has no node yet."""
        first, self._first = self._first, None
        if first is not None:
            about = {"attempt": 1}
            self._graph.add_ended(
                self._call_node, "system", "attempt", status="fail", metadata=about, **first
            )

    def begin(self, number: int, *, fallback: bool = False) -> None:
        """Record the start of attempt ``number``, or of the step's fallback."""
        self.add_first()
        about: dict[str, object] = {"attempt": number}
        if fallback:
            about["fallback"] = True
        self._node = self._graph.begin_node(self._call_node, "system", "attempt", metadata=about)
        self._graph.mark_running(self._node)

    def end(self, error: BaseException | None) -> None:
        """Record the end of the current attempt, if there is one; None is a success."""
        node, self._node = self._node, None
        if node is None:
            return
        if error is None:
            self._graph.mark_success(node, 0)
        elif isinstance(error, Exception):
            self._graph.mark_failure(node, *_class_and_message(error))
        else:
            self._graph.mark_halt(node, str(error) or type(error).__name__)


def _class_and_message(failure: Exception) -> tuple[str, str]:
    if isinstance(failure, AttemptError):
        return failure.error_class, str(failure)
    return class_name(failure), message_of_error(failure)
