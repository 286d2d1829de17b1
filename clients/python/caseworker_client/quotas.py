"""Operations on quotas: what a tenant may have at once and spend."""

from urllib.parse import quote

from caseworker_client.flow import Flow, Request, ask, fetch
from caseworker_client.service_models import Quota
from caseworker_client.settings import Settings


def get_quota(settings: Settings, tenant: str) -> Flow[Quota]:
    """Return the quota of a tenant and its use; others than the caller's only for the operator."""
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
    """Give a tenant a quota of its own, as the operator; None is unlimited, 0 lets nothing through.

    It takes the place of the whole quota that the tenant had, and holds from the next run on.
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
    """Give a tenant the quota of the configuration again, as the operator."""
    yield from ask(settings, Request(method="DELETE", path=_path(tenant)))


def _path(tenant: str) -> str:
    return f"/quotas/{quote(tenant, safe='')}"
