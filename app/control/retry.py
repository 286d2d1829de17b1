"""When a failed call is tried again (seed 002, 4.3 and 21)."""

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How often and how patiently a failed call is tried again.

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
    """The share of a wait that chance adds or takes, so that callers do not return in step."""
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


def delay_before_retry(
    policy: RetryPolicy,
    *,
    failed_attempts: int,
    retry_after_seconds: float | None,
    jitter_draw: float,
) -> float | None:
    """Return the seconds to wait before the next attempt, or None to give up.

    ``failed_attempts`` counts this failure (at least 1); ``jitter_draw`` is drawn by the caller
    from [-1, 1], so the ruling is repeatable. The wait is never shorter than what the provider
    asked for in ``Retry-After``: on top of that, jitter only adds. A provider that asks for more
    patience than the policy has is not asked again.

    Raises:
        ValueError: ``failed_attempts`` is below 1 or ``jitter_draw`` outside [-1, 1].
    """
    if failed_attempts < 1 or not -1 <= jitter_draw <= 1:
        raise ValueError("A ruling needs a failed attempt and a draw from [-1, 1].")
    if failed_attempts > policy.max_retries:
        return None
    wait = _backoff(policy, failed_attempts - 1) * (1 + policy.jitter * jitter_draw)
    asked = retry_after_seconds
    if asked is None or not asked > 0:  # also NaN
        return wait
    if asked > policy.max_delay_seconds:
        return None
    patient = asked * (1 + policy.jitter * abs(jitter_draw))
    return max(wait, min(patient, policy.max_delay_seconds))


def _backoff(policy: RetryPolicy, earlier_waits: int) -> float:
    """The wait before jitter, low enough that jitter keeps it under the maximum."""
    highest = policy.max_delay_seconds / (1 + policy.jitter)
    try:
        return min(policy.base_seconds * policy.factor**earlier_waits, highest)
    except OverflowError:
        return highest
