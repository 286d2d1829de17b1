"""The feature ``quotas``: the limits of tenants; see :mod:`caseworker.runs.quotas`."""

from typing import Final

from caseworker.features.feature import Feature, Opened
from caseworker.features.quotas import http
from caseworker.features.quotas.postgres import PostgresQuotas

QUOTAS: Final = Feature(
    name="quotas",
    routes=http.router.routes,
    tables=[
        *("quotas", "accounts", "account_holds", "quota_days", "quota_rates"),
        *("stored", "stored_runs"),
    ],
    open=lambda parts: Opened(services=[PostgresQuotas(parts.engines.work, parts.limits.quota)]),
)
