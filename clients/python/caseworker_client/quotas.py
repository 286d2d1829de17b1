"""Operations on tenant quotas."""

from urllib.parse import quote

from caseworker_client.flow import Flow, Request, ask, fetch
from caseworker_client.service_models import Quota
from caseworker_client.settings import Settings


def get_quota(settings: Settings, tenant: str) -> Flow[Quota]:
    """Return the quota and usage of a tenant; only the operator may read other tenants."""
    return (yield from fetch(settings, Request(method="GET", path=_path(tenant)), Quota))


def put_quota(
    settings: Settings,
    tenant: str,
    *,
    max_running: int | None = None,
    max_queued: int | None = None,
    max_runs_per_minute: int | None = None,
    max_cost_usd_per_day: float | None = None,
    max_cost_usd_per_month: float | None = None,
    max_stored_bytes: int | None = None,
    max_definitions: int | None = None,
    max_threads: int | None = None,
) -> Flow[Quota]:
    """Set a tenant's own quota, as the operator; None is unlimited, 0 allows nothing.

    It replaces the previous quota completely and applies to new runs.
    """
    limits = {
        "max_running": max_running,
        "max_queued": max_queued,
        "max_runs_per_minute": max_runs_per_minute,
        "max_cost_usd_per_day": max_cost_usd_per_day,
        "max_cost_usd_per_month": max_cost_usd_per_month,
        "max_stored_bytes": max_stored_bytes,
        "max_definitions": max_definitions,
        "max_threads": max_threads,
    }
    body = {name: limit for name, limit in limits.items() if limit is not None}
    request = Request(method="PUT", path=_path(tenant), json=body)
    return (yield from fetch(settings, request, Quota))


def delete_quota(settings: Settings, tenant: str) -> Flow[None]:
    """Reset a tenant to the configured default quota, as the operator."""
    yield from ask(settings, Request(method="DELETE", path=_path(tenant)))


def _path(tenant: str) -> str:
    return f"/quotas/{quote(tenant, safe='')}"
