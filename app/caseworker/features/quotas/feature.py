"""The feature ``quotas``: the limits of tenants; see :mod:`caseworker.runs.quotas`."""

from typing import Final

from caseworker.features.feature import Feature, Opened, Parts
from caseworker.features.quotas import http
from caseworker.features.quotas.postgres import PostgresQuotas


def open_quotas(parts: Parts) -> Opened:
    """Build the store of quotas."""
    return Opened(services=[PostgresQuotas(parts.engines.work, parts.limits.quota)])


QUOTAS: Final = Feature(
    name="quotas",
    routes=http.router.routes,
    tables=[
        *("quotas", "accounts", "account_holds", "quota_days", "quota_rates"),
        *("stored", "stored_runs"),
    ],
    open=open_quotas,
)
