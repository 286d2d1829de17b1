"""The default clock of a graph."""

import time

import pytest

from caseworker.core.trace.execution_graph import NS_PER_MS, ExecutionGraph, Ticks, steady_ticks


def now_ms(ticks: Ticks) -> int:
    return (ticks.read_ns() + ticks.anchor_ns) // NS_PER_MS


def test_it_tells_utc_milliseconds_and_ignores_corrections_of_the_time_of_day(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A jump of the system clock changes no timestamp; only the monotonic clock advances it."""
    monotonic = [5_000_000_000]
    monkeypatch.setattr(time, "time_ns", lambda: 1_740_000_000_000_000_000)
    monkeypatch.setattr(time, "monotonic_ns", lambda: monotonic[0])
    ticks = steady_ticks()
    assert now_ms(ticks) == 1_740_000_000_000

    monkeypatch.setattr(time, "time_ns", lambda: 0)
    monotonic[0] += 1_500_000_000

    assert now_ms(ticks) == 1_740_000_001_500


def test_a_clock_of_a_caller_is_used_as_it_is() -> None:
    """The graph returns the milliseconds of a caller's clock unchanged."""
    assert ExecutionGraph(now_ms=lambda: 1_740_000_000_123).now_ms() == 1_740_000_000_123
