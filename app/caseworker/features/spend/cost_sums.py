"""Background loop that stores the costs of older runs and adds up the costs of all runs."""

import asyncio
from dataclasses import dataclass

import structlog

from caseworker.features.spend.postgres.spend import PostgresCosts
from caseworker.platform.errors import StoreUnavailableError

log = structlog.get_logger(__name__)

SUM_SECONDS = 30
"""Interval in seconds at which stored costs are added to the sums."""

GAPS_SECONDS = 3_600
"""Interval in seconds at which each process looks for runs without stored costs."""

LEAST_PAUSE_SECONDS = 0.05
"""Minimum pause, in seconds, between two batches."""


@dataclass(frozen=True, slots=True)
class CostKeeper:
    """Keeps costs in small batches; every process may run it, and one of them works at a time."""

    costs: PostgresCosts

    async def run(self) -> None:
        """Work until cancelled. After each batch, pause for as long as it took."""
        clock = asyncio.get_running_loop().time
        gaps_at = clock()
        while True:
            began, more = clock(), False
            try:
                if began >= gaps_at:
                    await self.costs.find_gaps()
                    gaps_at = began + GAPS_SECONDS
                more = await self.costs.keep()
            except StoreUnavailableError:
                log.warning("costs.database_away")
            pause = max(LEAST_PAUSE_SECONDS, clock() - began) if more else SUM_SECONDS
            await asyncio.sleep(pause)
