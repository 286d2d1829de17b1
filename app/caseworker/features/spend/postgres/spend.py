"""Adds up the charges in the journals of runs; see :mod:`caseworker.features.spend.postgres.costs`.

A journal contains the charges of one run without its children, so each child is counted once.
Failed and interrupted calls keep their charges, and a call in flight is charged with its estimate.
Imported and replayed calls have none.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final, Literal

from psycopg.errors import QueryCanceled

from caseworker.features.spend.postgres.costs import (
    AGENT,
    FIND_GAPS,
    KEEP,
    bounds_of,
    kept_costs,
    kept_costs_by_run,
    live_costs,
)
from caseworker.platform.errors import StoreUnavailableError
from caseworker.platform.fair_slots import FairSlots
from caseworker.platform.postgres.engines import Pool, transaction
from caseworker.platform.postgres.locks import TRY_LOCK_COSTS

Period = Literal["day", "month"]

MAX_GROUPS: Final = 10_000
SPEND_STATEMENT_MS: Final = 10_000
"""Statement timeout in milliseconds; by metadata, a million runs take about two seconds."""
KEEP_STATEMENT_MS: Final = 30_000
"""Statement timeout of the background loop in milliseconds; its slowest statement counts all runs.
"""

_METADATA: Final = "runs.metadata ->> %(key)s"
_OF_KEY: Final = """CASE WHEN runs.kind = 'external'
    THEN runs.request #>> '{graph,steps,0,data,external,client,account}' END"""
_KEYS: Final[Mapping[str, tuple[str, str]]] = {
    "tenant": ("tenant_id", "tenant_id"),
    "agent": ("agent", AGENT),
    "model": ("model", "model"),
    "metadata": (_METADATA, _METADATA),
    "key": (_OF_KEY, _OF_KEY),
}
"""SQL for the key of a group, from kept costs and from the calls of a run."""
_OF_RUNS: Final = ("metadata", "key")
"""Keys that are read from the rows of runs."""
_PERIODS: Final[Mapping[Period | None, tuple[str, str]]] = {
    None: ("NULL::timestamp", "YYYY"),
    "day": ("date_trunc('day', at AT TIME ZONE 'UTC')", "YYYY-MM-DD"),
    "month": ("date_trunc('month', at AT TIME ZONE 'UTC')", "YYYY-MM"),
}
"""SQL for the start of a period, and the format of its name."""

_GROUPS = """
SELECT to_char({start}, '{form}') AS period, key, sum({count})::bigint AS runs,
    sum(llm_calls)::bigint AS llm_calls, sum(tokens)::bigint AS tokens,
    sum(cost_usd) AS cost_usd, sum(cost_usd_estimated) AS cost_usd_estimated,
    (sum(sum(runs)) OVER ())::bigint AS runs_in_all
FROM ({kept} UNION ALL {live}) AS cost
WHERE {only} GROUP BY {start}, key HAVING sum(parts) <> 0
ORDER BY period DESC, cost_usd DESC, key LIMIT 10001
"""
"""One group more than :data:`MAX_GROUPS` shows that there are too many.

By model, a run counts in the group of each of its models, but once in ``runs_in_all``. The sum of a
deleted group is zero until it is merged away.
"""


class RangeTooLargeError(Exception):
    """The range has more than :data:`MAX_GROUPS` groups, or the statement timed out."""


class PostgresSpend:
    """Reads the cost of runs."""

    def __init__(self, pool: Pool, sums: FairSlots) -> None:
        """``sums`` is held while costs are added up; see :class:`Engines`."""
        self._pool = pool
        self._sums = sums
        self._sums_by_metadata = FairSlots(1)  # they read runs, and take longer

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

        ``group_by`` is ``tenant``, ``agent``, ``model``, ``key`` or ``metadata.<key>``. In each
        row, ``runs_in_all`` is the number of runs in all groups.

        Raises:
            RangeTooLargeError: there are too many groups or runs.
        """
        name, _, metadata_key = group_by.partition(".")
        statement = _statement(name, period, "true" if all_tenants else "tenant_id = %(tenant)s")
        wall = None if all_tenants else tenant
        slots = self._sums_by_metadata if name in _OF_RUNS else self._sums
        try:
            async with (
                slots.held(),
                transaction(self._pool, wall, statement_ms=SPEND_STATEMENT_MS) as connection,
            ):
                bounds = await bounds_of(connection, wall, after, before)
                values = {"tenant": tenant, "key": metadata_key, **bounds.values()}
                rows = (await connection.exec_driver_sql(statement, values)).mappings().all()
        except StoreUnavailableError as error:
            if isinstance(getattr(error.__cause__, "orig", None), QueryCanceled):
                raise RangeTooLargeError from error
            raise
        if len(rows) > MAX_GROUPS:
            raise RangeTooLargeError
        return [dict(row) for row in rows]


def _statement(name: str, period: Period | None, scope: str) -> str:
    key, live_key = _KEYS[name]
    start, form = _PERIODS[period]
    costs = kept_costs_by_run if name in _OF_RUNS else kept_costs
    return _GROUPS.format(
        start=start,
        form=form,
        count="parts" if name == "model" else "runs",
        kept=costs(key, scope),
        live=live_costs(live_key, scope),
        only="of_model" if name == "model" else "true",
    )


class PostgresCosts:
    """Keeps the costs of runs; every method is a short transaction."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def find_gaps(self) -> None:
        """Schedule the tenants that have runs without stored costs, unless a process works.

        Raises:
            StoreUnavailableError: the database is unavailable or too busy.
        """
        async with transaction(self._pool, statement_ms=KEEP_STATEMENT_MS) as connection:
            if (await connection.exec_driver_sql(TRY_LOCK_COSTS)).scalar_one():
                await connection.exec_driver_sql(FIND_GAPS)

    async def keep(self) -> bool:
        """Store and add up the costs of one batch of runs; return whether there may be more.

        Raises:
            StoreUnavailableError: the database is unavailable or too busy.
        """
        async with transaction(self._pool, statement_ms=KEEP_STATEMENT_MS) as connection:
            return bool((await connection.exec_driver_sql(KEEP)).scalar_one())
