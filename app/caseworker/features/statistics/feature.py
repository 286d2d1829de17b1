"""The feature ``statistics``: counts, durations and failures of runs over time."""

from typing import Final

from caseworker.features.feature import Feature, Opened
from caseworker.features.statistics import http
from caseworker.features.statistics.postgres import PostgresStatistics

STATISTICS: Final = Feature(
    name="statistics",
    routes=http.router.routes,
    open=lambda parts: Opened(services=[PostgresStatistics(parts.engines)]),
)
