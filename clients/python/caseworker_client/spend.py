"""The cost of runs."""

from datetime import datetime

from caseworker_client.flow import Flow, Request, fetch
from caseworker_client.service_models import KeyUsage, Spend
from caseworker_client.settings import Settings


def spend(
    settings: Settings,
    group_by: str,
    *,
    period: str | None = None,
    after: datetime | None = None,
    before: datetime | None = None,
) -> Flow[Spend]:
    """Return the cost of runs by ``tenant``, ``agent``, ``model``, ``key`` or ``metadata.<key>``.

    ``period`` is ``day``, ``month`` or None for all time. ``after`` and ``before``, with a time
    zone, select the runs by the time of their acceptance.
    """
    params = {"group_by": group_by}
    params |= {} if period is None else {"period": period}
    bounds = {"after": after, "before": before}
    params |= {name: at.isoformat() for name, at in bounds.items() if at is not None}
    return (yield from fetch(settings, Request(method="GET", path="/spend", params=params), Spend))


def key_usage(settings: Settings, *, since: datetime | None = None) -> Flow[KeyUsage]:
    """Return the usage of the standing key with which the client sends its requests.

    ``since``, with a time zone, is the time from which halts of its sessions are reported.
    """
    params = {} if since is None else {"since": since.isoformat()}
    request = Request(method="GET", path="/gateway/usage", params=params)
    return (yield from fetch(settings, request, KeyUsage))
