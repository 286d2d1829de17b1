"""Background loop that keeps the sums of costs; see :mod:`caseworker.runs.postgres.costs`."""

import asyncio
from dataclasses import dataclass

import structlog

from caseworker.platform.errors import StoreUnavailableError
from caseworker.platform.postgres.engines import Pool, transaction
from caseworker.runs.postgres.costs import FILL, FIND_GAPS, SUM, TRY_LOCK_SUMS

log = structlog.get_logger(__name__)

SUM_SECONDS = 30
"""Interval in seconds at which stored costs are added to the sums."""

GAPS_SECONDS = 3_600
"""Interval in seconds at which each process looks for runs without stored costs."""

LEAST_PAUSE_SECONDS = 0.05
"""Minimum pause, in seconds, between two batches."""

STATEMENT_MS = 30_000
"""Statement timeout in milliseconds; the slowest statement counts all runs."""


@dataclass(frozen=True, slots=True)
class CostKeeper:
    """Stores the costs of older runs and adds up the costs of all runs, in small batches.

    Every process may run it: an advisory lock lets one of them work at a time.
    """

    pool: Pool

    async def run(self) -> None:
        """Work until cancelled. After each batch, pause for as long as it took."""
        clock = asyncio.get_running_loop().time
        gaps_at = clock()
        while True:
            began, more = clock(), False
            try:
                if began >= gaps_at:
                    await self.find_gaps()
                    gaps_at = began + GAPS_SECONDS
                more = await self.keep()
            except StoreUnavailableError:
                log.warning("costs.database_away")
            pause = max(LEAST_PAUSE_SECONDS, clock() - began) if more else SUM_SECONDS
            await asyncio.sleep(pause)

    async def find_gaps(self) -> None:
        """Schedule the tenants that have runs without stored costs, unless a process works.

        Raises:
            StoreUnavailableError: the database is unavailable or too busy.
        """
        async with transaction(self.pool, statement_ms=STATEMENT_MS) as connection:
            if (await connection.exec_driver_sql(TRY_LOCK_SUMS)).scalar_one():
                await connection.exec_driver_sql(FIND_GAPS)

    async def keep(self) -> bool:
        """Process one batch; return whether there may be more.

        Raises:
            StoreUnavailableError: the database is unavailable or too busy.
        """
        more = False
        for statement in (FILL, SUM):
            async with transaction(self.pool, statement_ms=STATEMENT_MS) as connection:
                more |= (await connection.exec_driver_sql(statement)).scalar_one()
        return more
