"""Shares the places of a queue among the tenants whose jobs want them.

A tenant may hold a multiple of the places that are free: alone it gets most of them, beside others
fewer, and those that come next find some. The threshold is that of Choudhury and Hahne (Dynamic
queue length thresholds for shared-memory packet switches, 1998).
"""

import time
from collections import Counter
from collections.abc import Callable

GREED = 3
"""How many places a tenant may hold for each that is free: alone, three quarters of them."""

LONGEST_WAIT_SECONDS = 300.0

_USUAL_SECONDS = 1.0
"""How long a job of a tenant is taken to last before one has ended."""

_WEIGHT = 0.2
"""Of the last job of a tenant in how long its jobs take."""


class Shares:
    """Who holds the places of a queue."""

    def __init__(self, places: int, now: Callable[[], float] = time.monotonic) -> None:
        self.free = places
        self._now = now
        self._began: dict[int, tuple[str, float]] = {}
        self._held: Counter[str] = Counter()
        self._seconds: dict[str, float] = {}
        self._turns: dict[str, float] = {}

    def take(self, job_id: int, tenant: str) -> float:
        """Take one of the free places for a job of a tenant, and return 0.

        A tenant that holds its share gets none: the seconds until its turn are returned, which
        follow each other as fast as its jobs have ended lately.
        """
        held, now = self._held[tenant], self._now()
        if held < GREED * self.free:
            self.free -= 1
            self._held[tenant] += 1
            self._began[job_id] = tenant, now
            return 0.0
        between = self._seconds.get(tenant, _USUAL_SECONDS) / max(1, held)
        turn = max(now, self._turns.get(tenant, now)) + between
        self._turns[tenant] = min(turn, now + LONGEST_WAIT_SECONDS)
        return self._turns[tenant] - now

    def give_back(self, job_id: int) -> None:
        """Free the place of a job that has ended."""
        tenant, began = self._began.pop(job_id)
        lasted = self._now() - began
        usual = self._seconds.get(tenant, lasted)
        self._seconds[tenant] = usual + _WEIGHT * (lasted - usual)
        self.free += 1
        self._held[tenant] -= 1
        if not self._held[tenant]:
            for known in (self._held, self._seconds, self._turns):
                known.pop(tenant, None)
