"""Releases runs that this process cannot continue, so other processes can claim them."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from caseworker.core.budget.stops import HandOver
from caseworker.platform.errors import StoreUnavailableError
from caseworker.runs.run import RunKey

Answer = TypeVar("Answer")

GIVE_UP_SECONDS = 5.0
"""How long a stopping process waits for one more run to end or be released, in addition to the
grace period of a step."""

CLAIM_SECONDS = 12.0
"""How long a stopping process waits for the answer to a claim in flight."""

RELEASES_AT_ONCE = 4
"""Concurrent releases; others queue here instead of holding a connection."""

AGAIN_SECONDS = (0.1, 2.0)
"""Back-off while the store is unavailable: first, maximum."""

PAUSE_SECONDS = (5.0, 60.0)
"""Pause before a declined run can be claimed again: first, maximum."""

DECLINED_AT_MOST = 8
"""How often this process declines one run, within about five minutes, before it fails the run."""

REMEMBERED = 1000
"""Maximum number of runs whose declines are counted."""


class Declined:
    """Counts how often this process has declined each run that it cannot execute.

    During a rolling update, the new release accepts runs with steps, functions or tools that
    processes of the old release lack. Those decline such runs with growing pauses.
    """

    def __init__(self) -> None:
        self._times: dict[RunKey, int] = {}

    def pause_before(self, key: RunKey) -> float | None:
        """Return the pause before the run may be claimed again; None after too many declines."""
        times = self._times.pop(key, 0) + 1
        if times > DECLINED_AT_MOST:
            return None
        self._times[key] = times
        if len(self._times) > REMEMBERED:
            del self._times[next(iter(self._times))]
        first, longest = PAUSE_SECONDS
        return float(min(first * 2 ** (times - 1), longest))


async def when_there(ask: Callable[[], Awaitable[Answer]]) -> Answer:
    """Call a store; retry with back-off while it is unavailable."""
    pause, longest = AGAIN_SECONDS
    while True:
        try:
            return await ask()
        except StoreUnavailableError:
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)


def shutting_down() -> HandOver:
    """Return the stop that hands runs over when the process shuts down."""
    return HandOver("The process is shutting down.")
