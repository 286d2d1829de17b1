"""What happens when a step fails (seed 000, REQ-E1 and REQ-E2; spec, section 4).

Every ``on_error`` makes ``retry_count`` further attempts first; only then it decides. A stop (a
cancel, a budget, a deadline) never comes here: it is no failure.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

OnError = Literal["fail", "retry", "skip", "fallback"]

JITTER = 0.2
"""The share of a wait that chance adds or takes, so that parallel steps do not return in step."""

LONGEST_SECONDS = 86_400.0
"""No wait and no attempt is longer than a day."""


@dataclass(frozen=True, slots=True)
class ErrorPolicy:
    """The policy of one step, with the names of seed 000.

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
    """The time of one attempt, the fallback's included; None is unlimited."""
    fallback_value: Any = None
    fallback_node: Any = None

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


@dataclass(frozen=True, slots=True)
class Retry:
    """Make another attempt after a wait."""

    delay_seconds: float


@dataclass(frozen=True, slots=True)
class GiveUp:
    """No further attempt: now ``on_error`` decides."""


def verdict(
    policy: ErrorPolicy,
    *,
    failed_attempts: int,
    jitter: float,
    retry_after_seconds: float | None = None,
    seconds_left: float = math.inf,
) -> Retry | GiveUp:
    """Judge a step that has failed ``failed_attempts`` times (at least once).

    ``jitter`` is drawn by the caller from [-1, 1]. A failure that says when to come back
    (``Retry-After``) is given at least that time. Where the wait would not end before a limit of
    time does, there is no further attempt.

    Raises:
        ValueError: ``failed_attempts`` is below 1 or ``jitter`` outside [-1, 1].
    """
    if failed_attempts < 1 or not -1 <= jitter <= 1:
        raise ValueError("A verdict needs a failed attempt and a draw from [-1, 1].")
    if failed_attempts > policy.retry_count:
        return GiveUp()
    delay = _backoff(policy, failed_attempts - 1) * (1 + JITTER * jitter)
    asked = retry_after_seconds
    if asked is not None and asked > delay:
        delay = asked * (1 + JITTER * abs(jitter))
    return GiveUp() if delay >= seconds_left or delay > LONGEST_SECONDS else Retry(delay)


def _backoff(policy: ErrorPolicy, earlier_waits: int) -> float:
    try:
        wait = policy.retry_delay_ms / 1000 * policy.retry_backoff**earlier_waits
    except OverflowError:
        return LONGEST_SECONDS / (1 + JITTER)
    return min(wait, LONGEST_SECONDS / (1 + JITTER))


def _require_whole(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{name} must be a whole number of at least 0.")
    if name.endswith("_ms") and value > LONGEST_SECONDS * 1000:
        raise ValueError(f"{name} must be at most {LONGEST_SECONDS * 1000:.0f} (a day).")
    if name == "retry_count" and value > 1000:
        raise ValueError("retry_count must be at most 1000.")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
