"""What a process does with a run that it cannot go on with: it leaves the run to others."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from caseworker.control.stops import HandOver
from caseworker.observability.store_errors import StoreUnavailableError
from caseworker.runs.run import RunKey

Answer = TypeVar("Answer")

GIVE_UP_SECONDS = 5.0
"""How long a process that ends waits for one more run to end or to be given back, besides what a
step may take to end."""

CLAIM_SECONDS = 12.0
"""How long it waits for the answer of a statement that may have claimed a run."""

RELEASES_AT_ONCE = 4
"""How many runs are given back at once; others wait here, and not for a connection."""

AGAIN_SECONDS = (0.1, 2.0)
"""How long to wait before asking a store again that was away: first, at most."""

PAUSE_SECONDS = (5.0, 60.0)
"""For how long a run that was declined is left to others: first, at most."""

DECLINED_AT_MOST = 8
"""How often a process declines one run, within about five minutes, before it fails the run."""

REMEMBERED = 1000
"""Of how many runs a process knows how often it has declined them."""


class Declined:
    """How often this process has declined a run that it cannot execute.

    A release that is being rolled out accepts runs with steps, functions or tools that the
    processes of the last one lack: those leave such a run to others, for ever longer.
    """

    def __init__(self) -> None:
        self._times: dict[RunKey, int] = {}

    def pause_before(self, key: RunKey) -> float | None:
        """Return for how long to leave a run to others now; None if that was done often enough."""
        times = self._times.pop(key, 0) + 1
        if times > DECLINED_AT_MOST:
            return None
        self._times[key] = times
        if len(self._times) > REMEMBERED:
            del self._times[next(iter(self._times))]
        first, longest = PAUSE_SECONDS
        return float(min(first * 2 ** (times - 1), longest))


async def when_there(ask: Callable[[], Awaitable[Answer]]) -> Answer:
    """Ask a store, again and again while it is away."""
    pause, longest = AGAIN_SECONDS
    while True:
        try:
            return await ask()
        except StoreUnavailableError:
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)


def shutting_down() -> HandOver:
    """Return the stop of a run whose process ends."""
    return HandOver("The process is shutting down.")
