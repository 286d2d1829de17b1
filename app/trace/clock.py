"""Where the timestamps of a trace come from."""

import time
from collections.abc import Callable
from typing import NamedTuple

Clock = Callable[[], int]
"""Tells the time in UTC epoch milliseconds; called by any thread."""

NS_PER_MS = 1_000_000


class Ticks(NamedTuple):
    """A clock in two parts, so that its readings can be kept as they are."""

    read_ns: Callable[[], int]
    """Reads the clock, in nanoseconds since whenever."""
    anchor_ns: int
    """Added to a reading it gives UTC epoch nanoseconds."""


def steady_ticks() -> Ticks:
    """Return a clock that is set to UTC once and then only moves forward.

    The time of day may be corrected at any moment; differences of two readings of this clock are
    durations all the same (spec 7), because it is the monotonic clock.
    """
    monotonic_ns = time.monotonic_ns
    return Ticks(monotonic_ns, time.time_ns() - monotonic_ns())


def ticks_of(clock: Clock) -> Ticks:
    """Return a clock of a caller in the same two parts."""
    return Ticks(lambda: clock() * NS_PER_MS, 0)
