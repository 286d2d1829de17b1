"""Whether a failed call is retried, and after which delay."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caseworker.core.budget.retry import GiveUp, RetryPolicy, decide_retry
from tests.support.limits import retry_policy

POLICY = retry_policy()


def _delay(
    failed_attempts: int,
    *,
    policy: RetryPolicy = POLICY,
    asked: float | None = None,
    draw: float = 0.0,
) -> float | None:
    """Return the back-off, or None if no further attempt is made."""
    ruling = decide_retry(
        policy, failed_attempts=failed_attempts, retry_after_seconds=asked, jitter=draw
    )
    return None if isinstance(ruling, GiveUp) else ruling.delay_seconds


@pytest.mark.req("002/21.1", "002/13.2")
def test_the_first_wait_is_half_a_second_and_each_further_one_twice_as_long() -> None:
    """The back-off starts at 0.5 s and doubles with each failure."""
    patient = retry_policy(max_retries=4)

    assert [_delay(n, policy=patient) for n in (1, 2, 3, 4)] == [0.5, 1.0, 2.0, 4.0]


@pytest.mark.req("002/21.2", "002/13.2")
def test_there_are_two_retries_by_default() -> None:
    """By default, the third failure is final."""
    assert _delay(2) is not None
    assert _delay(3) is None


@pytest.mark.req("002/21.1", "002/21.4")
def test_jitter_is_a_fifth_in_both_directions() -> None:
    """The random draw scales the delay by -20 % to +20 %."""
    assert _delay(1, draw=-1) == pytest.approx(0.4)
    assert _delay(1, draw=0.5) == pytest.approx(0.55)
    assert _delay(1, draw=1) == pytest.approx(0.6)


@pytest.mark.req("002/4.3")
def test_retry_after_is_honoured_when_it_is_longer_than_the_backoff() -> None:
    """A Retry-After longer than the back-off replaces it; a shorter one has no effect."""
    assert _delay(1, asked=7) == 7
    assert _delay(1, asked=0.1) == 0.5


@pytest.mark.req("002/4.3", "002/21.4")
def test_jitter_lengthens_retry_after_and_never_shortens_it() -> None:
    """Jitter spreads clients with the same Retry-After, and none retries too early."""
    assert _delay(1, asked=10, draw=-1) == pytest.approx(12)
    assert _delay(1, asked=10, draw=1) == pytest.approx(12)
    assert _delay(1, asked=10, draw=-0.5) == pytest.approx(11)


@pytest.mark.req("002/21.5")
def test_a_provider_that_wants_more_patience_than_there_is_is_not_asked_again() -> None:
    """A Retry-After beyond the maximum delay ends the retries instead of being shortened."""
    assert _delay(1, asked=30) == 30
    assert _delay(1, asked=30.1) is None
    assert _delay(1, asked=math.inf) is None


@pytest.mark.req("002/21.5")
@pytest.mark.parametrize(
    ("asked", "left", "explanation"),
    [
        (
            3600,
            20,
            "The provider asked to wait 3600 s, which exceeds the time that is left (20 s).",
        ),
        (25, 20, "The provider asked to wait 25 s, which exceeds the time that is left (20 s)."),
        (45, 90, "The provider asked to wait 45 s, which exceeds the maximum back-off (30 s)."),
        (
            None,
            0.2,
            "The next attempt has to wait 0.5 s, which exceeds the time that is left (0.2 s).",
        ),
    ],
)
def test_a_wait_that_does_not_fit_is_explained(
    asked: float | None, left: float, explanation: str
) -> None:
    """The text names the limit, and whether the provider requested the wait."""
    ruling = decide_retry(
        POLICY, failed_attempts=1, retry_after_seconds=asked, jitter=0, seconds_left=left
    )

    assert ruling == GiveUp(explanation)


@pytest.mark.parametrize("nonsense", [-5.0, 0.0, math.nan])
def test_a_meaningless_retry_after_is_ignored(nonsense: float) -> None:
    """An invalid Retry-After leaves the back-off unchanged."""
    assert _delay(1, asked=nonsense) == 0.5


@given(
    failed=st.integers(1, 5000),
    draw=st.floats(-1, 1),
    asked=st.none() | st.floats(0, 100),
    base=st.floats(0, 1e6),
    factor=st.floats(1, 100),
    jitter=st.floats(0, 1),
    highest=st.floats(0, 1e6),
)
def test_no_wait_is_negative_or_longer_than_the_maximum(
    failed: int,
    draw: float,
    asked: float | None,
    base: float,
    factor: float,
    jitter: float,
    highest: float,
) -> None:
    """The delay stays between zero and the maximum for any policy, draw and Retry-After."""
    policy = retry_policy(
        max_retries=5000,
        initial_delay_seconds=base,
        backoff_factor=factor,
        jitter=jitter,
        max_delay_seconds=highest,
    )

    delay = _delay(failed, policy=policy, asked=asked, draw=draw)

    assert delay is None or 0 <= delay <= highest * (1 + 1e-9)
    assert delay is None or asked is None or delay >= min(asked, highest)


@pytest.mark.parametrize(
    "wrong",
    [
        {"max_retries": -1},
        {"initial_delay_seconds": -0.1},
        {"initial_delay_seconds": math.inf},
        {"backoff_factor": 0.5},
        {"backoff_factor": math.nan},
        {"jitter": 1.1},
        {"max_delay_seconds": math.nan},
    ],
)
def test_a_policy_that_makes_no_sense_is_refused(wrong: dict[str, float]) -> None:
    """An invalid policy is rejected when it is created, not at the first failure."""
    with pytest.raises(ValueError, match=r"must be"):
        retry_policy(**wrong)


def test_a_ruling_needs_a_failure_and_a_fair_draw() -> None:
    """An attempt count of zero or a draw outside [-1, 1] raises ValueError."""
    with pytest.raises(ValueError, match="failed_attempts"):
        _delay(0)
    with pytest.raises(ValueError, match="jitter"):
        _delay(1, draw=1.5)
