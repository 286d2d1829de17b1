"""The features ``spend`` and ``statistics``, which read the kept costs of runs."""

from typing import Final

from caseworker.features.feature import Feature, Opened, Parts
from caseworker.features.spend import http
from caseworker.features.spend.cost_sums import CostKeeper
from caseworker.features.spend.postgres.spend import PostgresCosts, PostgresSpend
from caseworker.features.spend.postgres.statistics import PostgresStatistics


def open_spend(parts: Parts) -> Opened:
    """Build the reader of costs and the loop that adds them up."""
    pool = parts.engines.work
    return Opened(
        services=[PostgresSpend(pool, parts.engines.sums)],
        loops={"costs": CostKeeper(PostgresCosts(pool)).run},
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
