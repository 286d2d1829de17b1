"""The sums of ``GET /spend`` and ``GET /statistics``, computed from the calls of all runs.

They are slow and simple; the service must return the same from the costs that it keeps.
"""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from caseworker.runs.run import RunStatus
from tests.support.stores import Oracle

_AGENT = """CASE WHEN kind IN ('agent', 'external') OR request #>> '{chat,agent,name}' IS NOT NULL
    THEN coalesce(request #>> '{graph_ref,name}', request #>> '{chat,agent,name}',
        request #>> '{graph,steps,0,data,external,name}') END"""
_KEYS = {
    "tenant": "runs.tenant_id",
    "agent": _AGENT,
    "model": "spent.model",
    "metadata": "runs.metadata ->> %(key)s",
}
_PERIODS = {
    None: "NULL::text",
    "day": "to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM-DD')",
    "month": "to_char(created_at AT TIME ZONE 'UTC', 'YYYY-MM')",
}
_SPENT = """
SELECT {model} AS model,
    sum(CASE WHEN amounts ?| '{{m,b,llm_calls_small,llm_calls_big}}' THEN greatest(1,
        coalesce(amounts ->> 'm', amounts ->> 'llm_calls_small', '0')::bigint
        + coalesce(amounts ->> 'b', amounts ->> 'llm_calls_big', '0')::bigint) END) AS llm_calls,
    sum(coalesce(amounts ->> 't', amounts ->> 'tokens')::bigint) AS tokens,
    sum(coalesce(amounts ->> 'c', amounts ->> 'cost_usd')::numeric) AS cost_usd,
    sum(coalesce(amounts ->> 'f', amounts ->> 'cost_usd_estimated')::numeric) AS cost_usd_estimated
FROM (
    SELECT CASE WHEN list IS NULL THEN node ->> 'model' ELSE list ->> 5 END AS model,
        CASE WHEN list IS NULL THEN charge ELSE list -> 9 END AS amounts
    FROM (
        SELECT node, charge, brief::jsonb AS list FROM calls
        WHERE calls.tenant_id = runs.tenant_id AND calls.run_id = runs.run_id OFFSET 0
    ) AS call
) AS charged
{only}
GROUP BY 1
"""
_OF_MODELS = "WHERE model IS NOT NULL OR amounts ?| '{t,tokens,c,cost_usd}'"
_GROUPS = """
WITH found AS MATERIALIZED (
    SELECT runs.run_id, runs.tenant_id, {period} AS period, {key} AS key, spent.*
    FROM runs {join} LATERAL ({spent}) AS spent ON true
    WHERE {scope} AND request IS NOT NULL
        AND created_at >= coalesce(%(after)s, '-infinity'::timestamptz)
        AND created_at < coalesce(%(before)s, 'infinity'::timestamptz)
)
SELECT period, key, count(*) AS runs, coalesce(sum(llm_calls), 0)::bigint AS llm_calls,
    coalesce(sum(tokens), 0)::bigint AS tokens, coalesce(sum(cost_usd), 0) AS cost_usd,
    coalesce(sum(cost_usd_estimated), 0) AS cost_usd_estimated,
    (SELECT count({each}) FROM found) AS runs_in_all
FROM found GROUP BY period, key ORDER BY period DESC, cost_usd DESC, key
"""


async def spend_from_calls(
    oracle: Oracle,
    tenant: str,
    group_by: str,
    *,
    all_tenants: bool,
    period: str | None,
    after: datetime | None,
    before: datetime | None,
) -> list[dict[str, Any]]:
    """Return the rows of ``GET /spend``, from the calls of all runs."""
    name, _, key = group_by.partition(".")
    by_model = name == "model"
    statement = _GROUPS.format(
        period=_PERIODS[period],
        key=_KEYS[name],
        join="JOIN" if by_model else "LEFT JOIN",
        each="DISTINCT (tenant_id, run_id)" if by_model else "*",
        spent=_SPENT.format(
            model="model" if by_model else "NULL::text", only=_OF_MODELS if by_model else ""
        ),
        scope="true" if all_tenants else "runs.tenant_id = %(tenant)s",
    )
    values = {"tenant": tenant, "key": key, "after": after, "before": before}
    cursor = await oracle.connection.execute(statement.encode(), values)
    return await cursor.fetchall()


_COUNTS = ", ".join(f"count(*) FILTER (WHERE status = '{each}') AS {each}" for each in RunStatus)
_STATISTICS = f"""
WITH accepted AS MATERIALIZED (
    SELECT date_trunc(%(period)s, created_at, 'UTC') AS start, status,
        extract(epoch FROM finished_at - started_at)::float8 AS seconds,
        stop ->> 'kind' AS kind, coalesce(stop ->> 'error_class', stop ->> 'dimension') AS detail
    FROM runs
    WHERE tenant_id = %(tenant)s AND request IS NOT NULL
        AND created_at >= %(after)s AND created_at < %(before)s
), present AS (
    SELECT {_COUNTS} FROM runs
    WHERE tenant_id = %(tenant)s AND request IS NOT NULL
        AND status IN ('queued', 'running', 'waiting')
), failures AS (
    SELECT status, kind, detail, count(*) AS runs
    FROM accepted WHERE status IN ('failed', 'halted')
    GROUP BY status, kind, detail ORDER BY runs DESC, status, kind, detail LIMIT 20
)
SELECT start, count(*) AS runs, {_COUNTS},
    percentile_cont(0.5) WITHIN GROUP (ORDER BY seconds) AS p50_seconds,
    percentile_cont(0.95) WITHIN GROUP (ORDER BY seconds) AS p95_seconds,
    CASE WHEN start IS NULL THEN (SELECT to_jsonb(present) FROM present) END AS now,
    CASE WHEN start IS NULL THEN
        (SELECT coalesce(jsonb_agg(failures), '[]') FROM failures) END AS failures
FROM accepted GROUP BY GROUPING SETS ((), (start)) ORDER BY start NULLS FIRST
"""  # noqa: S608


async def statistics_from_runs(
    oracle: Oracle, tenant: str, period: str, after: datetime, before: datetime
) -> Mapping[str, Any]:
    """Return the content of ``GET /statistics``, from all runs."""
    values = {"tenant": tenant, "period": period, "after": after, "before": before}
    cursor = await oracle.connection.execute(_STATISTICS.encode(), values)
    total, *items = await cursor.fetchall()
    kept = {key: total.pop(key) for key in ("failures", "now")}
    return {**kept, "total": total, "items": items}
