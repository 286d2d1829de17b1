"""Operator commands for tenant quotas, which read and write the configured database directly."""

from collections.abc import Awaitable, Callable
from dataclasses import asdict
from decimal import Decimal, InvalidOperation
from typing import Annotated, Any

import typer

from caseworker.cli.output import AsJson, fail, out, show, show_json, show_table, startup_errors
from caseworker.features.quotas.usage import WARN_PERCENT, TenantQuota
from caseworker.platform.caller import is_tenant
from caseworker.runs.quotas import STORED, Quota

MAX_RUNS = 1_000_000
MAX_DOLLARS = Decimal(10**12)

cli = typer.Typer(no_args_is_help=True, help="Show and set the quotas of tenants.")


@startup_errors()
def _with(use: Callable[[Any], Awaitable[Any]]) -> Any:
    """Call ``use`` with the quota store in the configured database and return its result."""
    from caseworker.main.commands import with_quotas

    return with_quotas(use)


def _dollars(text: str) -> Decimal:
    try:
        amount = Decimal(text)
    except InvalidOperation:
        amount = Decimal("NaN")
    if not (amount.is_finite() and 0 <= amount <= MAX_DOLLARS):
        raise typer.BadParameter("must be a number of at least 0")
    return amount


Tenant = Annotated[str, typer.Argument(help="The tenant.")]


def _runs(what: str) -> Any:
    return typer.Option(min=0, max=MAX_RUNS, help=what)


def _cost(period: str) -> Any:
    help_ = f"Maximum cost in US dollars of the runs accepted per {period} (UTC)."
    return typer.Option(parser=_dollars, metavar="USD", help=help_)


@cli.command("show")
def show_quota(tenant: Tenant, as_json: AsJson = False) -> None:
    """Print the quota of a tenant and its current usage."""
    _require_tenant(tenant)
    _show(_with(lambda quotas: quotas.get(tenant)), as_json=as_json)


@cli.command("set")
def set_quota(
    tenant: Tenant,
    *,
    max_running: Annotated[
        int | None, _runs("Maximum number of concurrent runs; further runs are queued.")
    ] = None,
    max_queued: Annotated[
        int | None, _runs("Maximum number of queued runs; further runs are rejected.")
    ] = None,
    max_runs_per_minute: Annotated[
        int | None, _runs("Maximum number of accepted runs per minute; further runs are rejected.")
    ] = None,
    max_cost_usd_per_day: Annotated[Decimal | None, _cost("day")] = None,
    max_cost_usd_per_month: Annotated[Decimal | None, _cost("month")] = None,
    max_stored_bytes: Annotated[
        int | None, typer.Option(min=0, max=2**53, help="Maximum number of stored bytes.")
    ] = None,
    max_definitions: Annotated[
        int | None, _runs("Maximum number of versions of graphs and agents.")
    ] = None,
    max_threads: Annotated[int | None, _runs("Maximum number of threads.")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(help="Allowed model. Repeatable; all other models are rejected."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Set a tenant's own quota and print it.

    The previous quota is replaced entirely: an omitted option means no limit, whatever the
    configuration says. A limit of 0 allows nothing.
    """
    _require_tenant(tenant)
    quota = Quota(
        max_running=max_running,
        max_queued=max_queued,
        max_runs_per_minute=max_runs_per_minute,
        max_cost_usd_per_day=max_cost_usd_per_day,
        max_cost_usd_per_month=max_cost_usd_per_month,
        max_stored_bytes=max_stored_bytes,
        max_definitions=max_definitions,
        max_threads=max_threads,
        models=tuple(model) if model else None,
    )

    async def put(quotas: Any) -> Any:
        await quotas.put(tenant, quota)
        return await quotas.get(tenant)

    _show(_with(put), as_json=as_json)


@cli.command("remove")
def remove_quota(tenant: Tenant) -> None:
    """Reset a tenant to the configured quota (`quotas.*`)."""
    if not _with(lambda quotas: quotas.delete(tenant)):
        fail(
            f"Tenant {tenant} has no quota of its own. `caseworker quotas list` lists "
            "the tenants that have one."
        )
    show(f"Tenant {tenant} now has the configured default quota.")


@cli.command("list")
def list_quotas(as_json: AsJson = False) -> None:
    """List the tenants that have their own quota."""
    quotas = _with(lambda quotas: quotas.find())
    if as_json:
        show_json([{"tenant": each.tenant, **asdict(each.quota)} for each in quotas])
        return
    rows = []
    for each in quotas:
        limits = ((name, getattr(each.quota, name)) for name in Quota.__dataclass_fields__)
        texts = (f"{name} {_limit(limit)}" for name, limit in limits if limit is not None)
        rows.append({"tenant": each.tenant, "limits": ", ".join(texts) or "any"})
    show_table(rows, "tenant limits")


def _require_tenant(name: str) -> None:
    if not is_tenant(name):
        fail("The tenant must have 1 to 64 of the characters A-Z a-z 0-9 . _ : -")


def _show(usage: TenantQuota, *, as_json: bool) -> None:
    if as_json:
        show_json(asdict(usage))
        return
    from rich.table import Table

    quota, use = usage.quota, usage.use
    show(
        f"Tenant {usage.tenant} has "
        f"{'the configured quota' if usage.is_default else 'its own quota'}."
    )
    table = Table("", "limit", "used", "reserved", box=None)
    for name in ("running", "queued", *STORED):
        limit, used = getattr(quota, f"max_{name}"), getattr(use, name)
        table.add_row(name.replace("_", " "), _limit(limit), str(used))
    table.add_row("runs a minute", _limit(quota.max_runs_per_minute))
    today = (use.cost_usd_today, use.reserved_usd_today)
    month = (use.cost_usd_this_month, use.reserved_usd_this_month)
    table.add_row("USD today", _limit(quota.max_cost_usd_per_day), *map(_limit, today))
    table.add_row("USD this month", _limit(quota.max_cost_usd_per_month), *map(_limit, month))
    table.add_row("models", _limit(quota.models))
    out.print(table)
    for name in usage.nearly_full:
        show(f"{name.replace('_', ' ')}: at least {WARN_PERCENT} % of the limit is used.")


def _limit(limit: Decimal | int | tuple[str, ...] | None) -> str:
    if isinstance(limit, tuple):
        return ", ".join(limit)
    return "any" if limit is None else f"{Decimal(limit):f}"
