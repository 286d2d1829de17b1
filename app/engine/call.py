"""What is called, what comes back, and how it can fail."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

from app.control.retry import RetryPolicy
from app.control.usage import Charge
from app.engine.step_path import StepPath
from app.trace.node import checked_usage


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What one attempt cost; money in US dollars.

    Raises:
        ValueError: an amount is negative, or the cost is not finite.
    """

    tokens_in: int = 0
    tokens_out: int = 0
    cost_usd: Decimal = Decimal(0)

    def __post_init__(self) -> None:
        checked_usage(self.cost_usd, self.tokens_in, self.tokens_out)

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(
            tokens_in=self.tokens_in + other.tokens_in,
            tokens_out=self.tokens_out + other.tokens_out,
            cost_usd=self.cost_usd + other.cost_usd,
        )


FREE = Spent()


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
    """Reserved for an attempt, and charged for it if its cost is not known."""
    external: bool = True
    """False if it has no effect outside this process and costs nothing."""
    repeatable: bool = True
    """Whether a call whose outcome is unknown may be made again."""
    retry: RetryPolicy
    timeout_seconds: float | None = None
    """Per attempt."""
    metadata: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Reply:
    """What an attempt brought back: a JSON value and, if it is known, what it cost."""

    value: Any
    spent: Spent | None = None
    """None is charged at the estimate."""


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
    ) -> None:
        super().__init__(message)
        self.error_class = error_class
        self.retryable = retryable
        self.retry_after_seconds = retry_after_seconds
        self.spent = spent
        """None if it is not known, which is charged at the estimate."""


class CallFailedError(Exception):
    """A call that failed, its retries included."""

    def __init__(
        self,
        message: str,
        *,
        error_class: str,
        attempts: int,
        retry_after_seconds: float | None = None,
    ) -> None:
        super().__init__(message)
        self.error_class = error_class
        self.attempts = attempts
        self.retry_after_seconds = retry_after_seconds
        """When the other side wants to be asked again, if it said so."""


class OutcomeUnknownError(Exception):
    """A call that may have taken effect and must not be made again."""


Attempt = Callable[[], Awaitable[Reply]]
