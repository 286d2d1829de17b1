"""What is called, what comes back, how it can fail, and how attempts at it are made.

Work that succeeds at once, a call or a step, is one node of the ExecutionGraph. Only when a second
attempt begins do both become children of that node: the first is added then, with its real times.
"""

import asyncio
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal, Protocol, TypeVar

from caseworker.control.budget import Dimension
from caseworker.control.ledger import Room, Scope, as_estimated
from caseworker.control.retry import RetryPolicy, verdict
from caseworker.control.usage import NOTHING, Charge
from caseworker.engine.step_path import StepPath
from caseworker.observability.errors import message_of_error
from caseworker.trace.execution_graph import ExecutionGraph
from caseworker.trace.node import checked_usage

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What attempts cost; money in US dollars.

    Raises:
        ValueError: an amount is negative, or the cost is not finite.
    """

    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: Decimal | None = Decimal(0)
    """None if the price is not known."""
    estimated: bool = False
    """Whether the provider did not say so: it was sent, and the answer or its usage was lost."""

    def __post_init__(self) -> None:
        checked_usage(self.cost_usd or 0, self.tokens_in, self.tokens_out)

    @property
    def tokens(self) -> int:
        """Input and output tokens together."""
        return self.tokens_in + self.tokens_out

    @property
    def charge(self) -> Charge:
        """What it is in a budget."""
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
    """What all attempts of a call have cost so far, and of it what was estimated."""

    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: Decimal | None = Decimal(0)
    """None if the price of one of them is not known."""
    estimated: dict[str, Any] = field(default_factory=dict)
    """Of it, in the same words; empty if nothing was."""

    def add(self, spent: Spent) -> None:
        """Count an attempt."""
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
        """Return the sums as a CallNode takes them."""
        return {
            "cost_usd": self.cost_usd,
            "tokens_in": self.tokens_in,
            "tokens_out": self.tokens_out,
        }


class Turn(Protocol):
    """The turn of one attempt at something that may only be called so often."""

    async def take(self, tokens: int) -> bool:
        """Take it for an attempt of at most so many tokens; False if others are first."""
        ...

    async def wait(self) -> None:
        """Wait, after ``take`` was refused, until it may help to ask again."""
        ...

    def step_aside(self) -> None:
        """Let others ask meanwhile: this attempt waits for something else."""
        ...

    def leave(self) -> None:
        """Give up waiting; the attempt is not made."""
        ...

    def settle(self, tokens: int) -> None:
        """Say what the attempt that has taken its turn really took."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSpec:
    """What is about to be called."""

    key: StepPath
    """Where the call stands inside its run, the same whenever the run is executed again."""
    kind: Literal["llm", "tool"]
    name: str
    model: str | None = None
    request_hash: str
    """Of what is asked; a recorded result of another request is not replayed."""
    once: Charge = field(default_factory=dict)
    """Charged once, however many attempts it takes."""
    per_attempt: Charge = field(default_factory=dict)
    """Charged for every attempt that was allowed to begin."""
    estimate: Spent = FREE
    """What an attempt costs at most: reserved for it."""
    fit: Callable[[Room], Spent] | None = None
    """Returns the estimate of a request that was made as small as the room in a budget asks for,
    or as small as it may be. None: it is always the same."""
    lost: Callable[[], Spent] | None = None
    """Returns what an attempt has cost that was cut off now; None: the whole estimate."""
    external: bool = True
    """False if it has no effect outside this process and costs nothing."""
    turn: Callable[[], Turn] | None = None
    """Returns the turn of an attempt; None: attempts need not wait for one."""
    repeatable: bool = True
    """Whether a call whose outcome is unknown may be made again."""
    retry: RetryPolicy
    timeout_seconds: float | None = None
    """Per attempt."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    request: Mapping[str, Any] | None = None
    """What is asked, as a trace may show it; None keeps nothing of it."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What an attempt brought back: a JSON value and, if it is known, what it cost."""

    value: Any
    spent: Spent | None = None
    """None is charged as if the answer had been lost."""
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Added to the metadata of the call's node."""


@dataclass(frozen=True, slots=True)
class Answered:
    """A call that brought a result, now or in an earlier execution of the run."""

    value: Any
    """The JSON value of the reply."""
    node_id: str
    """Its CallNode: the parent of the calls that the result asks for."""


class AttemptError(Exception):
    """An attempt that failed; its message is safe to show."""

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
        """What a model may read of it in place of the message; None: the message."""
        self.raw_reply = raw_reply
        """The beginning of what came in place of an answer, as far as it may be kept."""
        self.retry_after_seconds = retry_after_seconds
        self.spent = spent
        """None if it is not known: it is then charged as if the answer had been lost."""


class CallFailedError(Exception):
    """A call that failed, its retries included."""

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
        """What a model may read of it."""
        self.error_class = error_class
        self.attempts = attempts
        self.node_id = node_id
        """The CallNode of the call."""
        self.retry_after_seconds = retry_after_seconds
        """When the other side wants to be asked again, if it said so."""


class OutcomeUnknownError(Exception):
    """A call that may have taken effect and must not be made again."""


Attempt = Callable[[], Awaitable[Reply]]


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
        before: tuple[int, Exception | None] | None = None,
    ) -> Result:
        """Make attempts until one succeeds or the policy gives up; no wait passes a limit of time.

        ``attempt`` gets its number, from 1. ``failed`` is called with each failure and the number
        of attempts so far, and returns whether a further one could help. ``before`` is how many
        attempts were made elsewhere, and the failure of the last one: None if the wait after it is
        over, because the next one had begun.

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
    """Return the wait that a failure asks for; None if what it says is no number of seconds."""
    try:
        seconds = float(getattr(failure, "retry_after_seconds", None) or 0)
    except Exception:  # anything may be written there, or stand behind a property
        return None
    return None if math.isnan(seconds) else seconds


class AttemptLog:
    """Records the attempts of one call or step; each is made in a ``with`` block of its own."""

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
        self._call_node = self._node = call_node
        self._failures = failures
        self._said = said
        self._started_ms = 0
        self._first: dict[str, Any] | None = None
        self.made = 0
        """The attempts so far, those of an earlier execution included."""
        self.of_fallback = False
        """Whether the next attempt is that of what works in place of a step."""

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
        """Record a first attempt that lasted from the call's begin until now, and failed."""
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
        """Add the first attempt, if it failed and is not there yet."""
        first, self._first = self._first, None
        if first is not None:
            about = {"attempt": 1}
            self._graph.add_ended(
                self._call_node, "system", "attempt", status="fail", metadata=about, **first
            )


def _class_of(failure: Exception) -> str:
    return failure.error_class if isinstance(failure, AttemptError) else type(failure).__name__
