"""The values that an error policy accepts, and its retry decisions."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caseworker.core.budget.retry import LONGEST_SECONDS, ErrorPolicy, GiveUp, Retry, decide_retry

SOME_NODE = object()


@pytest.mark.req("000/E1")
def test_the_defaults_are_those_of_the_source_document() -> None:
    """By default, a step fails at its first failure."""
    policy = ErrorPolicy()

    assert (policy.on_error, policy.retry_count, policy.retry_delay_ms) == ("fail", 0, 1000)
    assert (policy.retry_backoff, policy.timeout_ms) == (2.0, None)
    assert (policy.fallback_value, policy.fallback_node) == (None, None)


@pytest.mark.req("000/E1")
@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"on_error": "ignore"}, "on_error"),
        ({"on_error": "retry"}, "retry_count"),
        ({"on_error": "retry", "retry_count": 0}, "retry_count"),
        ({"on_error": "fallback"}, "fallback_node"),
        ({"on_error": "skip", "fallback_node": SOME_NODE}, "fallback_node"),
        ({"fallback_node": SOME_NODE}, "fallback_node"),
        ({"fallback_value": 0}, "fallback_value"),
        ({"on_error": "retry", "retry_count": 1, "fallback_value": ""}, "fallback_value"),
        (
            {"on_error": "fallback", "fallback_node": SOME_NODE, "fallback_value": 1},
            "fallback_value",
        ),
        ({"retry_count": -1}, "retry_count"),
        ({"retry_count": 1.5}, "retry_count"),
        ({"retry_count": True}, "retry_count"),
        ({"retry_count": 1001}, "retry_count"),
        ({"retry_delay_ms": -1}, "retry_delay_ms"),
        ({"retry_backoff": 0.5}, "retry_backoff"),
        ({"retry_backoff": math.nan}, "retry_backoff"),
        ({"retry_backoff": math.inf}, "retry_backoff"),
        ({"retry_backoff": "2"}, "retry_backoff"),
        ({"timeout_ms": 0}, "timeout_ms"),
        ({"timeout_ms": -5}, "timeout_ms"),
        ({"timeout_ms": 10**12}, "timeout_ms"),
    ],
)
def test_what_makes_no_sense_is_refused_when_it_is_built(
    values: dict[str, Any], named: str
) -> None:
    """The message names the invalid field."""
    with pytest.raises(ValueError, match=named):
        ErrorPolicy(**values)


@pytest.mark.req("000/E1")
@pytest.mark.parametrize(
    "values",
    [
        {"on_error": "fail", "retry_count": 2},
        {"on_error": "retry", "retry_count": 1},
        {"on_error": "skip"},
        {"on_error": "skip", "fallback_value": {"a": 1}, "retry_count": 1, "timeout_ms": 1},
        {"on_error": "fallback", "fallback_node": SOME_NODE, "retry_count": 3},
        {"retry_delay_ms": 0, "retry_backoff": 1},
    ],
)
def test_what_makes_sense_is_accepted(values: dict[str, Any]) -> None:
    """Every ``on_error`` mode may be combined with retries."""
    assert ErrorPolicy(**values).retry_count == values.get("retry_count", 0)


@pytest.mark.req("000/E2")
def test_the_waits_grow_by_the_backoff() -> None:
    """The delays are 100, 300 and 900 ms; the fourth failure is final."""
    policy = ErrorPolicy(retry_count=3, retry_delay_ms=100, retry_backoff=3)
    decisions = [decide_retry(policy.retry, failed_attempts=n, jitter=0) for n in (1, 2, 3)]

    waits = [pytest.approx(0.1), pytest.approx(0.3), pytest.approx(0.9)]
    assert [each.delay_seconds for each in decisions if isinstance(each, Retry)] == waits
    assert decide_retry(policy.retry, failed_attempts=4, jitter=0) == GiveUp()


@pytest.mark.req("000/E2")
@pytest.mark.parametrize("on_error", ["fail", "retry", "skip"])
def test_retries_come_before_every_decision(on_error: Any) -> None:
    """Each ``on_error`` mode applies only after the retries."""
    policy = ErrorPolicy(on_error=on_error, retry_count=1)

    assert isinstance(decide_retry(policy.retry, failed_attempts=1, jitter=0), Retry)
    assert decide_retry(policy.retry, failed_attempts=2, jitter=0) == GiveUp()


@pytest.mark.parametrize("left", [0.0, 0.5, 1.0])
def test_no_wait_goes_past_a_limit_of_time(left: float) -> None:
    """A retry whose delay would end after the time limit is skipped."""
    policy = ErrorPolicy(retry_count=1, retry_delay_ms=1000)

    decision = decide_retry(policy.retry, failed_attempts=1, jitter=0, seconds_left=left)
    reason = f"The next attempt has to wait 1 s, which exceeds the time that is left ({left:g} s)."
    assert decision == GiveUp(reason)
    assert decide_retry(policy.retry, failed_attempts=1, jitter=0, seconds_left=1.1) == Retry(1.0)


@given(
    attempts=st.integers(1, 1000),
    backoff=st.floats(1, 1e6),
    delay_ms=st.integers(0, 86_400_000),
    jitter=st.floats(-1, 1),
)
def test_no_wait_is_longer_than_a_day(
    attempts: int, backoff: float, delay_ms: int, jitter: float
) -> None:
    """The delay stays below a day for any number of failures and any back-off."""
    policy = ErrorPolicy(retry_count=1000, retry_delay_ms=delay_ms, retry_backoff=backoff)

    decision = decide_retry(policy.retry, failed_attempts=attempts, jitter=jitter)

    assert isinstance(decision, Retry)
    assert 0 <= decision.delay_seconds <= LONGEST_SECONDS * 1.0001
