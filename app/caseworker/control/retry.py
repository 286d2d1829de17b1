"""When something that failed is tried again, how long to wait before, and what comes after.

Calls have a :class:`RetryPolicy`. Steps have an :class:`ErrorPolicy`: it holds a retry policy, and
says what happens once the attempts are used up. Both are judged by :func:`verdict`. A stop (a
cancel, a budget, a deadline) is no failure and is never judged.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Literal, get_args

OnError = Literal["fail", "retry", "skip", "fallback"]

JITTER = 0.2
"""The share of a wait that chance adds or takes, so that callers do not return in step."""

LONGEST_SECONDS = 86_400.0
"""No wait of a step, and no attempt at it, is longer than a day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often something that failed is tried again, and after what waits.

    Raises:
        ValueError: a number is negative, not finite, or makes waits shrink.
    """

    max_retries: int
    """Attempts after the first."""
    base_seconds: float
    """The wait after the first failure."""
    factor: float
    """By how much each further wait is longer."""
    jitter: float
    """The share of a wait that chance adds or takes."""
    max_delay_seconds: float
    """No wait is longer than this, jitter included."""

    def __post_init__(self) -> None:
        if self.max_retries < 0:
            raise ValueError("max_retries must be zero or more.")
        if not (0 <= self.base_seconds < math.inf and 0 <= self.max_delay_seconds < math.inf):
            raise ValueError("The waits must be finite and not negative.")
        if not 1 <= self.factor < math.inf:
            raise ValueError("factor must be at least 1.")
        if not 0 <= self.jitter <= 1:
            raise ValueError("jitter must be between 0 and 1.")


@dataclass(frozen=True, slots=True)
class ErrorPolicy:
    """What happens when a step fails.

    Raises:
        ValueError: a value is out of its range, or two of them contradict each other; the message
            names the field and says what to do.
    """

    on_error: OnError = "fail"
    """Once the attempts are used up: ``fail`` and ``retry`` end the step with its error, ``skip``
    puts ``fallback_value`` in the place of its output, ``fallback`` executes ``fallback_node``."""
    retry_count: int = 0
    """Attempts after the first."""
    retry_delay_ms: int = 1000
    """The wait before the second attempt, give or take a fifth."""
    retry_backoff: float = 2.0
    """By how much each further wait is longer."""
    timeout_ms: int | None = None
    """The time of one attempt, the fallback's included; None is unlimited. A plain function cannot
    be interrupted: it ends by itself, and what it returns too late is not taken."""
    fallback_value: Any = None
    fallback_node: Any = None
    retry_on: Collection[str] | None = None
    """Names of error classes, base classes and codes of tools included: after any other failure no
    further attempt is made. None: all failures."""
    no_retry_on: Collection[str] = ()
    """Names after which no further attempt is made, whatever ``retry_on`` says."""

    def __post_init__(self) -> None:
        if self.on_error not in get_args(OnError):
            raise ValueError("on_error must be fail, retry, skip or fallback.")
        _require_whole("retry_count", self.retry_count)
        _require_whole("retry_delay_ms", self.retry_delay_ms)
        if self.timeout_ms is not None:
            _require_whole("timeout_ms", self.timeout_ms)
            if self.timeout_ms == 0:
                raise ValueError("timeout_ms must be positive, or None for no limit.")
        if not _is_number(self.retry_backoff) or not 1 <= self.retry_backoff < math.inf:
            raise ValueError("retry_backoff must be a finite number of at least 1.")
        self._refuse_contradictions()

    def _refuse_contradictions(self) -> None:
        if self.on_error == "retry" and self.retry_count == 0:
            raise ValueError("on_error retry needs a retry_count of at least 1.")
        if self.on_error == "fallback" and self.fallback_node is None:
            raise ValueError("on_error fallback needs a fallback_node.")
        if self.on_error != "fallback" and self.fallback_node is not None:
            raise ValueError("fallback_node is used with on_error fallback only.")
        if self.on_error != "skip" and self.fallback_value is not None:
            raise ValueError("fallback_value is used with on_error skip only.")

    def retries(self, error: Exception) -> bool:
        """Return whether a further attempt may follow a failure, as far as its class decides.

        A failure whose ``retryable`` is False would be met again; ``error_class`` is another name
        of its class.
        """
        if getattr(error, "retryable", True) is False:
            return False
        names = {kind.__name__ for kind in type(error).__mro__}
        names.add(str(getattr(error, "error_class", "")))
        wanted = self.retry_on is None or not names.isdisjoint(self.retry_on)
        return wanted and names.isdisjoint(self.no_retry_on)

    @property
    def retry(self) -> RetryPolicy:
        """When a further attempt is made."""
        return RetryPolicy(
            max_retries=self.retry_count,
            base_seconds=self.retry_delay_ms / 1000,
            factor=self.retry_backoff,
            jitter=JITTER,
            max_delay_seconds=LONGEST_SECONDS,
        )


def verdict(
    policy: RetryPolicy,
    *,
    failed_attempts: int,
    jitter: float,
    retry_after_seconds: float | None = None,
    seconds_left: float = math.inf,
) -> float | None:
    """Judge what has failed ``failed_attempts`` times (at least once).

    Return the seconds to wait before the next attempt, or None to give up. ``jitter`` is drawn by
    the caller from [-1, 1], so the verdict is repeatable. Where the other side asks for more
    patience (``Retry-After``) than the policy has, or the wait would not end before the time that
    is left, there is no further attempt.

    Raises:
        ValueError: ``failed_attempts`` is below 1 or ``jitter`` outside [-1, 1].
    """
    if failed_attempts < 1 or not -1 <= jitter <= 1:
        raise ValueError("A verdict needs a failed attempt and a draw from [-1, 1].")
    asked = retry_after_seconds if retry_after_seconds and retry_after_seconds > 0 else 0.0
    if failed_attempts > policy.max_retries or asked > policy.max_delay_seconds:
        return None
    delay = delay_seconds(policy, failed_attempts - 1, jitter, asked)
    return None if delay >= seconds_left else delay


def delay_seconds(
    policy: RetryPolicy, earlier_waits: int, jitter: float, asked_seconds: float
) -> float:
    """Return the wait that follows ``earlier_waits``, never longer than the policy's maximum.

    It is never shorter than ``asked_seconds``, which jitter only lengthens.
    """
    highest = policy.max_delay_seconds
    try:
        wait = policy.base_seconds * policy.factor**earlier_waits
    except OverflowError:
        wait = highest
    wait = min(wait, highest / (1 + policy.jitter)) * (1 + policy.jitter * jitter)
    patient = min(asked_seconds * (1 + policy.jitter * abs(jitter)), highest)
    return min(max(wait, patient) if asked_seconds > 0 else wait, highest)


def _require_whole(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} must be a whole number of at least 0.")
    if name.endswith("_ms") and value > LONGEST_SECONDS * 1000:
        raise ValueError(f"{name} must be at most {LONGEST_SECONDS * 1000:.0f} (a day).")
    if name == "retry_count" and value > 1000:
        raise ValueError("retry_count must be at most 1000.")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
