"""The feature ``spend``: the cost of runs by tenant, agent, model or metadata."""

from typing import Final

from caseworker.features.feature import Feature, Opened
from caseworker.features.spend import http
from caseworker.features.spend.postgres import PostgresSpend

SPEND: Final = Feature(
    name="spend",
    routes=http.router.routes,
    errors=http.ERRORS,
    open=lambda parts: Opened(services=[PostgresSpend(parts.engines.work)]),
)
