"""The features ``spend`` and ``statistics``, which read the kept costs of runs."""

import asyncio
from functools import partial
from typing import Final

import structlog

from caseworker.features.feature import Feature, Opened, Parts
from caseworker.features.spend import http
from caseworker.features.spend.postgres.spend import PostgresCosts, PostgresSpend
from caseworker.features.spend.postgres.statistics import PostgresStatistics
from caseworker.platform.errors import StoreUnavailableError

log = structlog.get_logger(__name__)

SUM_SECONDS = 30
"""Interval in seconds at which stored costs are added to the sums."""

GAPS_SECONDS = 3_600
"""Interval in seconds at which each process looks for runs without stored costs."""

MIN_PAUSE_SECONDS = 0.05
"""Minimum pause, in seconds, between two batches."""


async def keep_costs(costs: PostgresCosts) -> None:
    """Keep costs in small batches until cancelled; after each, pause for as long as it took.

    Every process may do so, and one of them works at a time.
    """
    clock = asyncio.get_running_loop().time
    gaps_at = clock()
    while True:
        began, more = clock(), False
        try:
            if began >= gaps_at:
                await costs.find_gaps()
                gaps_at = began + GAPS_SECONDS
            more = await costs.keep()
        except StoreUnavailableError:
            log.warning("costs.database_away")
        pause = max(MIN_PAUSE_SECONDS, clock() - began) if more else SUM_SECONDS
        await asyncio.sleep(pause)


def open_spend(parts: Parts) -> Opened:
    """Build the reader of costs and the loop that adds them up."""
    pool = parts.engines.work
    return Opened(
        services=[PostgresSpend(pool, parts.engines.sums)],
        loops={"costs": partial(keep_costs, PostgresCosts(pool))},
    )


SPEND: Final = Feature(
    name="spend",
    routes=http.router.routes,
    errors=http.ERRORS,
    open=open_spend,
)
"""The cost of runs by tenant, agent, model, key or metadata."""

STATISTICS: Final = Feature(
    name="statistics",
    routes=http.statistics_router.routes,
    open=lambda parts: Opened(services=[PostgresStatistics(parts.engines)]),
)
"""Counts, durations and failures of runs over time."""
