"""Route for the cost of runs."""

from typing import Annotated

from fastapi import Query
from pydantic import Field

from caseworker.features.spend.postgres.spend import (
    MAX_GROUPS,
    Period,
    PostgresSpend,
    RangeTooLargeError,
)
from caseworker.platform.http.bodies import STORABLE, Instant, QueryModel, View, named_like
from caseworker.platform.http.openapi import EVERY_RUN_ROUTE, answers
from caseworker.platform.http.problems import Errors, invalid
from caseworker.platform.http.request import ApiRequest, api_router

router = api_router("spend")

_FORM = r"^(tenant|agent|model|metadata\..{1,190})$"
GroupBy = Annotated[
    str,
    named_like(_FORM, 200, "This must be tenant, agent, model or metadata.<key>."),
    STORABLE,
    Field(json_schema_extra={"pattern": _FORM}),
]


class SpendQuery(QueryModel):
    """Query parameters that select runs and group their costs."""

    group_by: GroupBy
    """Criterion for grouping: `tenant`, `agent`, `model` or `metadata.<key>`."""
    period: Period | None = None
    """Group also by the UTC day or month in which the run was accepted; omitted: all time."""
    after: Instant | None = None
    """Count only runs accepted at or after this time."""
    before: Instant | None = None
    """Count only runs accepted before this time."""


class SpendSum(View):
    """The cost of a number of runs, according to their journals."""

    runs: int
    llm_calls: int
    tokens: int
    cost_usd: float
    cost_usd_estimated: float
    """The part of `cost_usd` that is an estimate, for calls whose response was lost."""


class SpendItem(SpendSum):
    """The cost of one group of runs."""

    period: str | None
    """Day (`2026-11-27`) or month (`2026-11`) in UTC; null without `period`."""
    key: str | None
    """Tenant, agent, model or metadata value of the group; null for runs without one."""


class SpendView(View):
    """Costs by group, the newest period and the highest cost first."""

    group_by: str
    period: Period | None
    items: list[SpendItem]
    total: SpendSum
    """Sum of all groups. A run that called several models counts once."""


ERRORS: Errors = {
    RangeTooLargeError: lambda _: invalid(
        "after",
        f"The range has more than {MAX_GROUPS:,} groups or too many runs. Narrow it with after "
        "and before.",
    )
}


@router.get("/spend", responses=answers(*EVERY_RUN_ROUTE))
async def get_spend(query: Annotated[SpendQuery, Query()], request: ApiRequest) -> SpendView:
    """Return the cost of the tenant's runs by agent, model or metadata, per day or month.

    The sums equal those of the traces: failed, cancelled and running runs count with all their
    charges. Deleted runs are not counted. Grouped by tenant, the operator sees all tenants.
    """
    caller = request.caller
    rows = await request.service(PostgresSpend).find(
        caller.tenant,
        all_tenants=query.group_by == "tenant" and caller.sees_all_tenants,
        **query.model_dump(),
    )
    sums = {name: sum(row[name] for row in rows) for name in SpendSum.model_fields}
    return SpendView(
        group_by=query.group_by,
        period=query.period,
        items=[SpendItem(**row) for row in rows],
        total=SpendSum(**sums | {"runs": rows[0]["runs_in_all"] if rows else 0}),
    )
