"""Where the timestamps of a trace come from."""

import time
from collections.abc import Callable

Clock = Callable[[], int]
"""Tells the time in UTC epoch milliseconds; called by any thread."""


def steady_clock() -> Clock:
    """Return a clock that is set to UTC once and then only moves forward.

    The time of day may be corrected at any moment; differences of two readings of this clock are
    durations all the same (spec 7), because it advances with the monotonic clock.
    """
    anchor_ns = time.time_ns() - time.monotonic_ns()
    monotonic_ns = time.monotonic_ns

    def now_ms() -> int:
        return (anchor_ns + monotonic_ns()) // 1_000_000

    return now_ms
