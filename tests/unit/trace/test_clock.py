"""The default clock of a graph."""

import time

import pytest

from app.trace.clock import steady_clock


def test_it_tells_utc_milliseconds() -> None:
    """The same as the time of day when nobody corrects that."""
    now_ms = steady_clock([0])

    assert abs(now_ms() - time.time_ns() // 1_000_000) < 1_000


def test_it_ignores_corrections_of_the_time_of_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """A jump of the system clock is no jump of durations; only the monotonic clock moves it."""
    monotonic = [5_000_000_000]
    monkeypatch.setattr(time, "time_ns", lambda: 1_740_000_000_000_000_000)
    monkeypatch.setattr(time, "monotonic_ns", lambda: monotonic[0])
    now_ms = steady_clock([0])
    assert now_ms() == 1_740_000_000_000

    monkeypatch.setattr(time, "time_ns", lambda: 0)
    monotonic[0] += 1_500_000_000

    assert now_ms() == 1_740_000_001_500
