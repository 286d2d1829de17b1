"""Adds up the charges in the journals of runs.

A journal contains the charges of one run without its children, so each child is counted once.
Failed and interrupted calls keep their charges, and a call in flight is charged with its estimate.
Imported and replayed calls have none.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal

from psycopg.errors import QueryCanceled

from caseworker.platform.errors import StoreUnavailableError
from caseworker.platform.fair_slots import FairSlots
from caseworker.platform.postgres.engines import Pool, transaction
from caseworker.runs.postgres.run_listing import AGENT_NAME, RUNS_AN_AGENT

Period = Literal["day", "month"]

MAX_GROUPS: Final = 10_000
SPEND_STATEMENT_MS: Final = 10_000
"""Statement timeout in milliseconds; a million calls take two to five seconds."""

_KEYS: Final[Mapping[str, str]] = {
    "tenant": "runs.tenant_id",
    "agent": f"CASE WHEN {RUNS_AN_AGENT} THEN {AGENT_NAME} END",
    "model": "spent.model",
    "metadata": "runs.metadata ->> %(key)s",
}
_PERIODS: Final[Mapping[Period | None, str]] = {
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
"""Add up the charges of one run, by model if ``model`` is that column.

The number of LLM calls follows from the calls per tier, as in the usage of a run. ``OFFSET 0`` has
each call parsed once.
"""

_OF_MODELS: Final = "WHERE model IS NOT NULL OR amounts ?| '{t,tokens,c,cost_usd}'"

_GROUPS = """
WITH found AS MATERIALIZED (
    SELECT runs.run_id, {period} AS period, {key} AS key, spent.*
    FROM runs {join} LATERAL ({spent}) AS spent ON true
    WHERE {scope} AND request IS NOT NULL
        AND created_at >= coalesce(%(after)s, '-infinity'::timestamptz)
        AND created_at < coalesce(%(before)s, 'infinity'::timestamptz)
)
SELECT period, key, count(*) AS runs, coalesce(sum(llm_calls), 0)::bigint AS llm_calls,
    coalesce(sum(tokens), 0)::bigint AS tokens, coalesce(sum(cost_usd), 0) AS cost_usd,
    coalesce(sum(cost_usd_estimated), 0) AS cost_usd_estimated,
    (SELECT count({each}) FROM found) AS runs_in_all
FROM found GROUP BY period, key
ORDER BY period DESC, cost_usd DESC, key LIMIT 10001
"""
"""One group more than :data:`MAX_GROUPS` shows that there are too many."""


class RangeTooLargeError(Exception):
    """The range has more than :data:`MAX_GROUPS` groups, or the statement timed out."""


class PostgresSpend:
    """Reads the cost of runs."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._turn = FairSlots(1)  # a slow sum uses one core of the database, not all

    async def find(
        self,
        tenant: str,
        group_by: str,
        *,
        all_tenants: bool,
        period: Period | None,
        after: datetime | None,
        before: datetime | None,
    ) -> Sequence[Mapping[str, Any]]:
        """Return the charges of the runs accepted from ``after`` until before ``before``.

        ``group_by`` is ``tenant``, ``agent``, ``model`` or ``metadata.<key>``. In each row,
        ``runs_in_all`` is the number of runs in all groups.

        Raises:
            RangeTooLargeError: there are too many groups or runs.
        """
        name, _, key = group_by.partition(".")
        by_model = name == "model"
        statement = _GROUPS.format(
            period=_PERIODS[period],
            key=_KEYS[name],
            join="JOIN" if by_model else "LEFT JOIN",
            each="DISTINCT run_id" if by_model else "*",
            spent=_SPENT.format(
                model="model" if by_model else "NULL::text", only=_OF_MODELS if by_model else ""
            ),
            scope="true" if all_tenants else "runs.tenant_id = %(tenant)s",
        )
        asked = {"tenant": tenant, "key": key, "after": after, "before": before}
        wall = None if all_tenants else tenant
        try:
            async with (
                self._turn.held(),
                transaction(self._pool, wall, statement_ms=SPEND_STATEMENT_MS) as connection,
            ):
                rows = (await connection.exec_driver_sql(statement, asked)).mappings().all()
        except StoreUnavailableError as error:
            if isinstance(getattr(error.__cause__, "orig", None), QueryCanceled):
                raise RangeTooLargeError from error
            raise
        if len(rows) > MAX_GROUPS:
            raise RangeTooLargeError
        return [dict(row) for row in rows]
