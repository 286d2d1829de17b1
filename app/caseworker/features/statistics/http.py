"""Route for statistics about runs: counts by status, durations and failures over time."""

from datetime import UTC, datetime, timedelta
from typing import Annotated

from fastapi import Query

from caseworker.features.statistics.postgres import Period, PostgresStatistics
from caseworker.platform.http.bodies import Instant, QueryModel, View
from caseworker.platform.http.openapi import EVERY_RUN_ROUTE, answers
from caseworker.platform.http.problems import invalid
from caseworker.platform.http.request import ApiRequest, api_router
from caseworker.runs.run import RunStatus

router = api_router("runs", prefix="/statistics")

_USUAL = {"hour": timedelta(hours=24), "day": timedelta(days=30)}
_LONGEST = {"hour": timedelta(days=31), "day": timedelta(days=366)}


class StatisticsQuery(QueryModel):
    """The period of each item, and the range of time in which the runs were accepted."""

    period: Period = "hour"
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

    period: Period
    after: datetime
    before: datetime
    items: list[PeriodCounts]
    """The periods in order, without those in which no run was accepted."""
    total: RunCounts
    failures: list[FailureCount]
    """The most frequent reasons, at most 20."""
    now: PresentCounts


@router.get("", responses=answers(*EVERY_RUN_ROUTE))
async def get_statistics(
    query: Annotated[StatisticsQuery, Query()], request: ApiRequest
) -> RunStatistics:
    """Return how many runs were accepted over time, how they ended and how long they took."""
    after, before = query.range()
    figures = await request.service(PostgresStatistics).find(
        request.caller.tenant, query.period, after, before
    )
    return RunStatistics(period=query.period, after=after, before=before, **figures)
