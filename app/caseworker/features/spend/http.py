"""Routes for the cost of runs, and for statistics: counts by status, durations and failures."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import Query
from pydantic import Field

from caseworker.features.spend.postgres.spend import (
    MAX_GROUPS,
    Period,
    PostgresSpend,
    RangeTooLargeError,
)
from caseworker.features.spend.postgres.statistics import PeriodLength, PostgresStatistics
from caseworker.platform.http.bodies import STORABLE, Instant, QueryModel, View, named_like
from caseworker.platform.http.openapi import EVERY_RUN_ROUTE, answers
from caseworker.platform.http.problems import Errors, invalid
from caseworker.platform.http.request import ApiRequest, api_router
from caseworker.runs.run import RunStatus

router = api_router("spend")

_FORM = r"^(tenant|agent|model|key|metadata\..{1,190})$"
GroupBy = Annotated[
    str,
    named_like(_FORM, 200, "This must be tenant, agent, model, key or metadata.<key>."),
    STORABLE,
    Field(json_schema_extra={"pattern": _FORM}),
]


class SpendQuery(QueryModel):
    """Query parameters that select runs and group their costs."""

    group_by: GroupBy
    """Criterion for grouping: `tenant`, `agent`, `model`, `key` or `metadata.<key>`.

    `key` is the ID of the standing key whose sessions the runs belong to. Keys that replaced it by
    a rotation count as the same one."""
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
    """Tenant, agent, model, ID of the standing key or metadata value of the group; null for runs
    without one."""


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
    """Return the cost of the tenant's runs by agent, model, key or metadata, per day or month.

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


statistics_router = api_router("runs", prefix="/statistics")

_USUAL = {"hour": timedelta(hours=24), "day": timedelta(days=30)}
_LONGEST = {"hour": timedelta(days=31), "day": timedelta(days=366)}


class StatisticsQuery(QueryModel):
    """The period of each item, and the range of time in which the runs were accepted."""

    period: PeriodLength = "hour"
    """Length of the period that each item covers: an hour, or a day in UTC."""
    after: Instant | None = None
    """Start of the range, inclusive. By default, ``before`` minus 24 hours for ``hour`` and minus
    30 days for ``day``. The range may be 31 days long for ``hour`` and 366 days for ``day``."""
    before: Instant | None = None
    """End of the range, exclusive; by default the current time."""

    def range(self) -> tuple[datetime, datetime]:
        """Return start and end of the range.

        Raises:
            ProblemError: the range is empty or too long.
        """
        before = self.before or datetime.now(UTC)
        first = datetime.min.replace(tzinfo=UTC)
        after = self.after or before - min(_USUAL[self.period], before - first)
        if not timedelta(0) < before - after <= _LONGEST[self.period]:
            longest = f"at most {_LONGEST[self.period].days} days before the end"
            raise invalid("after", f"The start of the range must be {longest}, and before it.")
        return after, before


class RunCounts(View):
    """Numbers of runs by their current status, and the durations of the runs that ended."""

    runs: int
    queued: int
    running: int
    waiting: int
    completed: int
    failed: int
    halted: int
    cancelled: int
    p50_seconds: float | None
    """Median time from start to end in seconds, including the time that runs waited for approvals.
    Null if no run has ended."""
    p95_seconds: float | None
    """95th percentile of the same time in seconds."""


class PeriodCounts(RunCounts):
    """The runs that were accepted in one period."""

    start: datetime
    """Start of the period in UTC; the first period may start before the range."""


class FailureCount(View):
    """Number of runs that failed or were halted for the same reason."""

    status: RunStatus
    kind: str | None
    """Kind of the run's ``stop``, such as ``error``, ``budget`` or ``deadline``."""
    detail: str | None
    """Error class, or the dimension of the budget that was exhausted."""
    runs: int


class PresentCounts(View):
    """Numbers of runs that have not ended, whenever they were accepted."""

    queued: int
    running: int
    waiting: int


class RunStatistics(View):
    """Statistics about the runs that were accepted in a range of time."""

    period: PeriodLength
    after: datetime
    before: datetime
    items: list[PeriodCounts]
    """The periods in order, without those in which no run was accepted."""
    total: RunCounts
    failures: list[FailureCount]
    """The most frequent reasons, at most 20."""
    now: PresentCounts


@statistics_router.get("", responses=answers(*EVERY_RUN_ROUTE))
async def get_statistics(
    query: Annotated[StatisticsQuery, Query()], request: ApiRequest
) -> RunStatistics:
    """Return how many runs were accepted over time, how they ended and how long they took."""
    after, before = query.range()
    figures = await request.service(PostgresStatistics).find(
        request.caller.tenant, query.period, after, before
    )
    return RunStatistics(period=query.period, after=after, before=before, **figures)
