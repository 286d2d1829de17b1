"""Reads and maintains the kept costs of runs: one row per run and model, and sums by hour and day.

A trigger stores the costs of a run in ``run_costs`` when the transaction that ends it commits, and
again if costs arrive later. The costs of a waiting run, whose calls do not change, are stored until
it stops waiting. The sums in ``cost_sums`` are additive rows. A background loop adds the
rows of ``run_costs`` to them and marks those as summed; deleting a summed row adds a row of
negative numbers. So at any time, the rows of ``cost_sums`` plus the rows of ``run_costs`` that are
not summed equal the costs of all ended and waiting runs. Transactions that end runs never wait for
each other, because both tables only get new rows. A transaction waits for the loop only if it
changes or deletes a run with stored costs which the loop is adding up.

A statement adds up four sources in one snapshot:

- sums of the whole days and hours in the range, and the rows that are not summed yet
- rows of runs in the incomplete hours at both ends of the range
- calls of queued and running runs; a run that was never claimed has made none, so it only counts
- calls of runs that the background loop has not reached after a migration (``cost_backfill``)

See docs/internals.md, "Kept costs".
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from sqlalchemy import BigInteger, Boolean, Column, Double, Identity, Integer, Numeric, Table, Text
from sqlalchemy.ext.asyncio import AsyncConnection

from caseworker.runs.postgres.tables import INSTANT, columns, metadata, run_key
from caseworker.runs.read.postgres.run_listing import AGENT_NAME, RUNS_AN_AGENT

run_costs = Table(
    "run_costs",
    metadata,
    *run_key(),
    Column("part", Integer, primary_key=True, autoincrement=False),
    Column("created_at", INSTANT, nullable=False),
    Column("status", Text, nullable=False),
    Column("seconds", Double),
    *columns(Text, "stop_kind stop_detail agent model"),
    *columns(Boolean, "of_model summed", nullable=False),
    *columns(BigInteger, "llm_calls tokens", nullable=False),
    *columns(Numeric, "cost_usd cost_usd_estimated", nullable=False),
)
"""Costs of runs that have ended, by model."""

cost_sums = Table(
    "cost_sums",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("span", Text, primary_key=True),
    Column("start", INSTANT, primary_key=True),
    Column("seq", BigInteger, Identity(always=True), primary_key=True),
    *columns(Text, "status", nullable=False),
    *columns(Text, "stop_kind stop_detail agent model"),
    *columns(Boolean, "of_model merged", nullable=False),
    *columns(BigInteger, "runs parts llm_calls tokens", nullable=False),
    *columns(Numeric, "cost_usd cost_usd_estimated", nullable=False),
)
"""Sums of ``run_costs`` by hour and day in UTC, as rows that are added up."""

cost_backfill = Table(
    "cost_backfill",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("before", INSTANT, nullable=False),
)
"""Tenants whose runs accepted before a time may lack rows in ``run_costs``."""

FIRST: Final = datetime.min.replace(tzinfo=UTC)
LAST: Final = datetime.max.replace(tzinfo=UTC)

KEEP: Final = "SELECT caseworker_fill_costs(500)::integer + caseworker_sum_costs(5000)::integer > 0"
"""Store the costs of some runs that may lack them, add stored costs to the sums, and merge sums.
Return whether there may be more."""

FIND_GAPS: Final = """
INSERT INTO cost_backfill (tenant_id, before)
SELECT ended.tenant_id, 'infinity' FROM (
    SELECT tenant_id, count(*) AS runs FROM runs
    WHERE finished_at IS NOT NULL OR status = 'waiting' GROUP BY tenant_id
) AS ended LEFT JOIN (
    SELECT tenant_id, sum(runs) AS runs FROM (
        SELECT tenant_id, runs FROM cost_sums WHERE span = 'day'
        UNION ALL SELECT tenant_id, 1 FROM run_costs WHERE NOT summed AND part = 1
    ) AS counted GROUP BY tenant_id
) AS kept USING (tenant_id)
WHERE ended.runs > coalesce(kept.runs, 0)
ON CONFLICT DO NOTHING
"""
"""Schedule tenants that have ended or waiting runs without costs, such as rows that were imported
while triggers were disabled."""

_COMPLETE_FROM = """
SELECT max(least(before, '9999-01-01T00:00:00Z')) FROM cost_backfill
WHERE %(all)s OR tenant_id = %(tenant)s
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """A range of time, split into the parts that are read from different tables.

    ``after <= costs_from <= hours <= days <= days_end <= hours_end <= before``. Starts are
    inclusive and ends exclusive.
    """

    after: datetime
    costs_from: datetime
    """Runs accepted before this time may lack kept costs, so their calls are read."""
    hours: datetime
    """Start of the first whole hour."""
    days: datetime
    """Start of the first whole day; whole hours are read before it."""
    days_end: datetime
    hours_end: datetime
    before: datetime

    @classmethod
    def of(
        cls,
        after: datetime,
        before: datetime,
        complete_from: datetime | None = None,
        *,
        by_day: bool = True,
    ) -> "Bounds":
        """Split a range that is complete from ``complete_from`` on (None: entirely).

        Without ``by_day``, whole days are read by the hour.
        """
        before = max(after, before)
        costs_from = min(max(after, complete_from or after), before)
        hours, hours_end = _complete_steps(timedelta(hours=1), costs_from, before)
        day = timedelta(days=1)
        days, days_end = (
            _complete_steps(day, hours, hours_end) if by_day else (hours_end, hours_end)
        )
        return cls(
            after=after,
            costs_from=costs_from,
            hours=hours,
            days=days,
            days_end=days_end,
            hours_end=hours_end,
            before=before,
        )

    def values(self) -> Mapping[str, datetime]:
        """Return the parameters of the statements."""
        return asdict(self)


def _complete_steps(step: timedelta, start: datetime, end: datetime) -> tuple[datetime, datetime]:
    """Return the start and end of the whole steps in a range; twice its end if it has none."""
    rest = (start - FIRST) % step
    first = start + (step - rest) % step if end - start >= step else end
    last = end - (end - FIRST) % step
    return (first, last) if first < last else (end, end)


async def bounds_of(
    connection: AsyncConnection,
    tenant: str | None,
    after: datetime | None,
    before: datetime | None,
    *,
    by_day: bool = True,
) -> Bounds:
    """Return the bounds for the runs of a tenant, or of all tenants.

    Read in a statement before the one that uses them: a period whose costs are complete stays
    complete.
    """
    parameters = {"all": tenant is None, "tenant": tenant}
    complete_from = (await connection.exec_driver_sql(_COMPLETE_FROM, parameters)).scalar()
    return Bounds.of(after or FIRST, before or LAST, complete_from, by_day=by_day)


def _within(column: str, *ranges: tuple[str, str]) -> str:
    each = (f"{column} >= %({start})s AND {column} < %({end})s" for start, end in ranges)
    return "(" + " OR ".join(each) + ")"


EDGES: Final = ("costs_from", "hours"), ("hours_end", "before")

IN_SUMS: Final = f"""(span = 'day' AND {_within("start", ("days", "days_end"))}
    OR span = 'hour' AND {_within("start", ("hours", "days"), ("days_end", "hours_end"))})"""
"""Condition for the rows of ``cost_sums`` in a range."""

IN_ROWS: Final = f"""(NOT summed AND {_within("created_at", ("hours", "hours_end"))}
    OR {_within("created_at", *EDGES)})"""
"""Condition for the rows of ``run_costs`` that the sums of a range do not contain."""

IN_PROGRESS: Final = f"""request IS NOT NULL AND (status = 'queued' OR status = 'running')
    AND {_within("created_at", ("costs_from", "before"))}"""
"""Condition for the runs of a range that have no kept costs, because they have neither ended nor do
they wait.

Written so that it matches the partial indexes for each status, which contain all tenants.
"""

UNFILLED: Final = f"request IS NOT NULL AND {_within('created_at', ('after', 'costs_from'))}"
"""Condition for the runs of a range that may lack kept costs."""

COMPLETE: Final = _within("created_at", ("costs_from", "before"))
"""Condition for the rows of ``run_costs`` of runs whose costs are complete."""

AGENT: Final = f"CASE WHEN {RUNS_AN_AGENT} THEN {AGENT_NAME} END"

AMOUNTS: Final = "llm_calls, tokens, cost_usd, cost_usd_estimated"


def live_costs(key: str, scope: str) -> str:
    """Return SQL for the costs of runs that have no kept ones, as rows with ``key``."""
    from_calls = (
        f"""SELECT created_at AS at, {key} AS key, of_model, (part = 1)::integer AS runs,
            1 AS parts, {AMOUNTS}
        FROM runs, LATERAL caseworker_costs_of(tenant_id, run_id) AS cost
        WHERE {scope} AND {condition}"""  # noqa: S608 - nothing of a caller's is in it
        for condition in (f"{IN_PROGRESS} AND fence > 0", UNFILLED)
    )
    never_started = f"""SELECT created_at, {key}, false, 1, 1, 0, 0, 0, 0
        FROM runs, (VALUES (NULL::text)) AS no_call(model)
        WHERE {scope} AND {IN_PROGRESS} AND fence = 0"""  # noqa: S608
    return "\n    UNION ALL ".join((*from_calls, never_started))


def kept_costs(key: str, scope: str) -> str:
    """Return SQL for the kept costs, as rows with ``key``, which is a column of both tables."""
    return f"""SELECT start AS at, {key} AS key, of_model, runs, parts, {AMOUNTS}
        FROM cost_sums WHERE {scope} AND {IN_SUMS}
    UNION ALL SELECT created_at, {key}, of_model, (part = 1)::integer, 1, {AMOUNTS}
        FROM run_costs WHERE {scope} AND {IN_ROWS}"""  # noqa: S608


def kept_costs_by_run(key: str, scope: str) -> str:
    """Return SQL for the kept costs by run, as rows with ``key``, an expression of ``runs``.

    ``OFFSET 0`` has the key evaluated before the join, which would else carry whole rows.
    """
    return f"""SELECT at, key, of_model, (part = 1)::integer AS runs, 1 AS parts, {AMOUNTS}
        FROM (
            SELECT tenant_id, run_id, created_at AS at, {key} AS key FROM runs
            WHERE request IS NOT NULL AND {scope} AND {COMPLETE} OFFSET 0
        ) AS run JOIN (
            SELECT tenant_id, run_id, part, of_model, {AMOUNTS} FROM run_costs
            WHERE {scope} AND {COMPLETE}
        ) AS cost USING (tenant_id, run_id)"""  # noqa: S608
