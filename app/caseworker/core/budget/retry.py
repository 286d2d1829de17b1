"""Retry and error policies: whether to retry, how long to back off, and how to fail.

Calls have a :class:`RetryPolicy`. Steps have an :class:`ErrorPolicy`, which contains a retry policy
and defines the outcome once the attempts are exhausted. :func:`decide_retry` decides for both. A
stop (a cancel request, a budget or a deadline) is not a failure and is never retried.
"""

import math
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

OnError = Literal["fail", "retry", "skip", "fallback"]

JITTER = 0.2
"""The default fraction by which a back-off randomly varies, so that callers do not retry in
sync."""

LONGEST_SECONDS = 86_400.0
"""The maximum back-off, and the maximum timeout of a step, in seconds: one day."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """The maximum number of retries, and an exponential back-off between them.

    With an ``initial_delay_seconds`` of 0.5 and a ``backoff_factor`` of 2, the delays before the
    retries are 0.5, 1, 2, 4… seconds, up to ``max_delay_seconds``.

    Raises:
        ValueError: a number is negative or not finite, ``backoff_factor`` is below 1, or
            ``jitter`` is above 1.
    """

    max_retries: int
    """Maximum number of retries, which is the number of attempts after the first."""
    initial_delay_seconds: float
    """Back-off after the first failure, in seconds."""
    backoff_factor: float
    """Factor by which the back-off grows with each further failure."""
    jitter: float
    """Maximum random variation of a back-off, as a fraction from 0 to 1."""
    max_delay_seconds: float
    """Maximum back-off in seconds, jitter included."""

    def __post_init__(self) -> None:
        if self.max_retries < 0:
            raise ValueError("max_retries must be zero or more.")
        if not (
            0 <= self.initial_delay_seconds < math.inf and 0 <= self.max_delay_seconds < math.inf
        ):
            raise ValueError("The delays must be finite and not negative.")
        if not 1 <= self.backoff_factor < math.inf:
            raise ValueError("backoff_factor must be at least 1.")
        if not 0 <= self.jitter <= 1:
            raise ValueError("jitter must be between 0 and 1.")


ONE_ATTEMPT: Final = RetryPolicy(
    max_retries=0,
    initial_delay_seconds=0.0,
    backoff_factor=1.0,
    jitter=0.0,
    max_delay_seconds=0.0,
)
"""A policy without retries."""


@dataclass(frozen=True, slots=True)
class ErrorPolicy:
    """How a step handles failures: retries, timeout, and the outcome after the last attempt.

    Raises:
        ValueError: a value is out of range, or two values contradict each other; the message names
            the field and the fix.
    """

    on_error: OnError = "fail"
    """Action once all attempts have failed. ``fail`` and ``retry`` fail the step. ``skip`` uses
    ``fallback_value`` as its output. ``fallback`` executes ``fallback_node``."""
    retry_count: int = 0
    """Maximum number of retries, which is the number of attempts after the first."""
    retry_delay_ms: int = 1000
    """Back-off before the first retry, in milliseconds; it varies randomly by up to 20 percent."""
    retry_backoff: float = 2.0
    """Factor by which the back-off grows with each further failure."""
    timeout_ms: int | None = None
    """Timeout in milliseconds for each attempt, including the fallback; None means no timeout. A
    synchronous function cannot be interrupted: it runs to completion, and its late result is
    discarded."""
    fallback_value: Any = None
    fallback_node: Any = None
    retry_on: Collection[str] | None = None
    """Names of the error classes to retry; names of base classes and tool error codes work as well.
    None retries every error."""
    no_retry_on: Collection[str] = ()
    """Names of the error classes that are never retried, even if ``retry_on`` contains them."""

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
            raise ValueError("on_error retry requires a retry_count of at least 1.")
        if self.on_error == "fallback" and self.fallback_node is None:
            raise ValueError("on_error fallback requires a fallback_node.")
        if self.on_error != "fallback" and self.fallback_node is not None:
            raise ValueError("fallback_node is only allowed with on_error fallback.")
        if self.on_error != "skip" and self.fallback_value is not None:
            raise ValueError("fallback_value is only allowed with on_error skip.")

    def retries(self, error: Exception) -> bool:
        """Return whether this kind of failure may be retried.

        An error whose ``retryable`` attribute is False is never retried. The error's
        ``error_class`` attribute, if any, is compared in addition to its class names.
        """
        error = getattr(error, "item_error", error)  # a map failed because of this error
        if getattr(error, "retryable", True) is False:
            return False
        names = {kind.__name__ for kind in type(error).__mro__}
        names.add(str(getattr(error, "error_class", "")))
        is_listed = self.retry_on is None or not names.isdisjoint(self.retry_on)
        return is_listed and names.isdisjoint(self.no_retry_on)

    @property
    def retry(self) -> RetryPolicy:
        """The retry policy that results from this step's settings."""
        return RetryPolicy(
            max_retries=self.retry_count,
            initial_delay_seconds=self.retry_delay_ms / 1000,
            backoff_factor=self.retry_backoff,
            jitter=JITTER,
            max_delay_seconds=LONGEST_SECONDS,
        )


@dataclass(frozen=True, slots=True)
class Retry:
    """The decision to make another attempt."""

    delay_seconds: float
    """Back-off before the attempt."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The decision to make no further attempt."""

    explanation: str = ""
    """A sentence that names the limit, if the next back-off exceeds one; empty if the retries are
    exhausted."""


def decide_retry(
    policy: RetryPolicy,
    *,
    failed_attempts: int,
    jitter: float,
    retry_after_seconds: float | None = None,
    seconds_left: float = math.inf,
) -> Retry | GiveUp:
    """Decide whether to retry after ``failed_attempts`` failures (at least one).

    The caller draws ``jitter`` from [-1, 1], so the decision is deterministic. No retry is made
    whose back-off would not end within ``seconds_left``, or if ``retry_after_seconds`` (the
    provider's ``Retry-After``) exceeds the policy's maximum delay.

    Raises:
        ValueError: ``failed_attempts`` is below 1 or ``jitter`` outside [-1, 1].
    """
    if failed_attempts < 1 or not -1 <= jitter <= 1:
        raise ValueError("failed_attempts must be at least 1 and jitter from -1 to 1.")
    if failed_attempts > policy.max_retries:
        return GiveUp()
    requested_seconds = max(0.0, retry_after_seconds or 0.0)
    delay = delay_seconds(policy, failed_attempts - 1, jitter, requested_seconds)
    seconds = max(delay, requested_seconds)
    if seconds >= seconds_left:
        limit, limit_seconds = "the time that is left", seconds_left
    elif requested_seconds > policy.max_delay_seconds:
        limit, limit_seconds = "the maximum back-off", policy.max_delay_seconds
    else:
        return Retry(delay)
    wait = "The provider asked to wait" if requested_seconds else "The next attempt has to wait"
    lengths = f"{round(seconds, 1):g} s", f"{round(limit_seconds, 1):g} s"
    return GiveUp(f"{wait} {lengths[0]}, which exceeds {limit} ({lengths[1]}).")


def delay_seconds(
    policy: RetryPolicy, earlier_waits: int, jitter: float, asked_seconds: float
) -> float:
    """Return the next back-off in seconds, after ``earlier_waits`` earlier ones.

    The result is at least ``asked_seconds``, whatever the jitter, and at most the policy's maximum.
    """
    highest = policy.max_delay_seconds
    try:
        wait = policy.initial_delay_seconds * policy.backoff_factor**earlier_waits
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
