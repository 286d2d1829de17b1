"""Releases runs that this process cannot continue, so that other processes can claim them.

See docs/internals.md, "Recovery".
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from caseworker.core.budget.stops import HandOver
from caseworker.platform.errors import StoreUnavailableError
from caseworker.runs.run import RunKey

Answer = TypeVar("Answer")

GIVE_UP_SECONDS = 5.0
"""Seconds, in addition to the grace period of a step, that a stopping process waits for the next
run to end or to be released."""

CLAIM_SECONDS = 12.0
"""Seconds that a stopping process waits for the response to a claim in flight."""

RELEASES_AT_ONCE = 4
"""Maximum number of concurrent releases. Further releases wait without holding a connection."""

AGAIN_SECONDS = (0.1, 2.0)
"""First and maximum back-off, in seconds, while the store is unavailable."""

PAUSE_SECONDS = (5.0, 60.0)
"""First and maximum pause, in seconds, before a declined run can be claimed again."""

MAX_DECLINES = 8
"""Number of times that this process declines a run before the run fails. Including the pauses, that
takes about five minutes."""

REMEMBERED = 1000
"""Maximum number of runs for which the number of declines is remembered."""


class Declined:
    """Counts how often this process has declined each run that it cannot execute.

    During a rolling update, processes of the new release accept runs with steps, functions or tools
    that processes of the old release lack. The old processes decline such runs, with growing
    pauses.
    """

    def __init__(self) -> None:
        self._times: dict[RunKey, int] = {}

    def pause_before(self, key: RunKey) -> float | None:
        """Count a decline; return the pause in seconds, or None if the run must fail."""
        times = self._times.pop(key, 0) + 1
        if times > MAX_DECLINES:
            return None
        self._times[key] = times
        if len(self._times) > REMEMBERED:
            del self._times[next(iter(self._times))]
        initial_delay_seconds, max_delay_seconds = PAUSE_SECONDS
        return float(min(initial_delay_seconds * 2 ** (times - 1), max_delay_seconds))


async def when_there(ask: Callable[[], Awaitable[Answer]]) -> Answer:
    """Return the result of ``ask``, retrying with back-off while the store is unavailable."""
    delay_seconds, max_delay_seconds = AGAIN_SECONDS
    while True:
        try:
            return await ask()
        except StoreUnavailableError:
            await asyncio.sleep(delay_seconds)
            delay_seconds = min(2 * delay_seconds, max_delay_seconds)


def shutting_down() -> HandOver:
    """Return the :class:`HandOver` stop that releases a run because the process shuts down."""
    return HandOver("The process is shutting down.")
