"""Counts runs over time, from the stored cost sums."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Literal

from caseworker.features.spend.postgres.costs import (
    IN_PROGRESS,
    IN_ROWS,
    IN_SUMS,
    UNFILLED,
    bounds_of,
)
from caseworker.platform.postgres.engines import Engines, transaction
from caseworker.runs.read.postgres.run_listing import LIST_STATEMENT_MS
from caseworker.runs.run import RunStatus

PeriodLength = Literal["hour", "day"]
"""Length of the periods of statistics, in UTC."""

_COUNTS = ", ".join(f"count(*) FILTER (WHERE status = '{each}') AS {each}" for each in RunStatus)
_SUMS = ", ".join(
    f"coalesce(sum(runs) FILTER (WHERE status = '{each}'), 0)::bigint AS {each}"
    for each in RunStatus
)
_OF_TENANT = "tenant_id = %(tenant)s"
_KEPT_REASON = "stop_kind AS kind, stop_detail AS detail"
STATISTICS = f"""
WITH accepted AS MATERIALIZED (
    SELECT date_trunc(%(period)s, at, 'UTC') AS start, status, kind, detail,
        sum(runs)::bigint AS runs
    FROM (
        SELECT start AS at, status, {_KEPT_REASON}, runs FROM cost_sums
        WHERE {_OF_TENANT} AND {IN_SUMS}
        UNION ALL SELECT created_at, status, {_KEPT_REASON}, 1 FROM run_costs
        WHERE {_OF_TENANT} AND part = 1 AND {IN_ROWS}
        UNION ALL SELECT created_at, status, NULL, NULL, 1 FROM runs
        WHERE {_OF_TENANT} AND {IN_PROGRESS}
        UNION ALL SELECT created_at, status, stop ->> 'kind',
            coalesce(stop ->> 'error_class', stop ->> 'dimension'), 1 FROM runs
        WHERE {_OF_TENANT} AND {UNFILLED}
    ) AS counted
    GROUP BY 1, 2, 3, 4 HAVING sum(runs) <> 0
), present AS (
    SELECT {_COUNTS} FROM runs
    WHERE {_OF_TENANT} AND request IS NOT NULL
        AND status IN ('queued', 'running', 'waiting')
), failures AS (
    SELECT status, kind, detail, sum(runs)::bigint AS runs
    FROM accepted WHERE status IN ('failed', 'halted')
    GROUP BY status, kind, detail ORDER BY runs DESC, status, kind, detail LIMIT 20
), item AS (
    SELECT start, coalesce(sum(runs), 0)::bigint AS runs, {_SUMS},
        start + make_interval(hours => CASE %(period)s WHEN 'hour' THEN 1 ELSE 24 END) AS until
    FROM accepted GROUP BY GROUPING SETS ((), (start))
)
SELECT start, runs, {", ".join(RunStatus)}, percentiles[1] AS p50_seconds,
    percentiles[2] AS p95_seconds,
    CASE WHEN start IS NULL THEN (SELECT to_jsonb(present) FROM present) END AS now,
    CASE WHEN start IS NULL THEN
        (SELECT coalesce(jsonb_agg(failures), '[]') FROM failures) END AS failures
FROM item, LATERAL (
    SELECT percentile_cont(ARRAY[0.5, 0.95]) WITHIN GROUP (ORDER BY seconds) AS percentiles FROM (
        SELECT seconds FROM run_costs WHERE {_OF_TENANT} AND part = 1
            AND created_at >= greatest(start, %(costs_from)s)
                AND created_at < least(until, %(before)s)
        UNION ALL
        SELECT date_part('epoch', finished_at - started_at) FROM runs
        WHERE {_OF_TENANT} AND request IS NOT NULL
            AND created_at >= greatest(start, %(after)s)
                AND created_at < least(until, %(costs_from)s)
    ) AS ended
) AS duration
ORDER BY start NULLS FIRST
"""  # noqa: S608
"""Return the total of a range of time, then its periods in order.

Runs are counted by kept sums. Percentiles cannot be added up, so the durations of each period are
read from an index. ``greatest`` and ``least`` ignore the null of the total.
"""


class PostgresStatistics:
    """Reads statistics about runs."""

    def __init__(self, engines: Engines) -> None:
        self._engines = engines

    async def find(
        self, tenant: str, period: PeriodLength, after: datetime, before: datetime
    ) -> Mapping[str, Any]:
        """Return counts, durations and failures of the runs accepted in a range of time."""
        async with (
            self._engines.sums.held(),
            transaction(self._engines.work, tenant, statement_ms=LIST_STATEMENT_MS) as connection,
        ):
            # The durations of a million runs are sorted; only one such statement runs at a time.
            await connection.exec_driver_sql("SET LOCAL work_mem = '64MB'")
            bounds = await bounds_of(connection, tenant, after, before, by_day=period == "day")
            values = {"tenant": tenant, "period": period, **bounds.values()}
            rows = (await connection.exec_driver_sql(STATISTICS, values)).mappings().all()
        total, *items = map(dict, rows)
        return {key: total.pop(key) for key in ("failures", "now")} | {
            "total": total,
            "items": items,
        }
