"""Where the timestamps of a trace come from."""

import time
from collections.abc import Callable

Clock = Callable[[], int]
"""Tells the time in UTC epoch milliseconds; called by any thread."""


Readings = list[int]
"""Of one element: what a clock has read last, in nanoseconds of the monotonic clock."""


def steady_clock(readings: Readings) -> Clock:
    """Return a clock that is set to UTC once and then only moves forward.

    It leaves in ``readings`` what it has read, so that whoever wants to know a moment more finely
    need not look at the time once more.

    The time of day may be corrected at any moment; differences of two readings of this clock are
    durations all the same (spec 7), because it advances with the monotonic clock.
    """
    anchor_ns = time.time_ns() - time.monotonic_ns()
    monotonic_ns = time.monotonic_ns

    def now_ms() -> int:
        readings[0] = reading = monotonic_ns()
        return (anchor_ns + reading) // 1_000_000

    return now_ms
