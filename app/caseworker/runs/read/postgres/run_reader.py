"""Reads runs from Postgres, with their events, calls, payloads and conversations."""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import Any, cast

import psycopg
from psycopg.rows import dict_row
from pydantic_core import from_json
from sqlalchemy import RowMapping, func, select
from sqlalchemy.ext.asyncio import AsyncConnection

from caseworker.core.trace.node import ATTEMPT, number_of
from caseworker.engine.events import CONTENT_CHUNK, Event
from caseworker.engine.ports import CallOutcome
from caseworker.platform.paging import Page
from caseworker.platform.postgres.engines import Engines, transaction
from caseworker.runs.journal.event_log import ENDS, STARTS
from caseworker.runs.journal.journal_rows import (
    call_from_row,
    event_from_row,
    stored_types,
    whole_event,
    whole_once,
)
from caseworker.runs.journal.postgres import PostgresJournal
from caseworker.runs.journal.replay import charge_of
from caseworker.runs.ports import EventPage, Notification, RunFilter, SpentSoFar
from caseworker.runs.postgres.rows import encode_cursor, run_from_row
from caseworker.runs.postgres.run_statements import SPENT
from caseworker.runs.postgres.tables import JOURNAL_COLUMNS, events, journal, of_run, runs
from caseworker.runs.read.postgres.run_listing import LIST_STATEMENT_MS, page_query
from caseworker.runs.run import TERMINAL, CallRecord, Run, RunKey

_RUNS = f"SELECT {', '.join(runs.c.keys())} FROM runs WHERE request IS NOT NULL"  # noqa: S608
RUN = f"{_RUNS} AND tenant_id = %s AND run_id = %s"
RUN_OF_KEY = f"{_RUNS} AND tenant_id = %s AND idempotency_key = %s"

EVENTS = """
SELECT runs.status, e.* FROM runs LEFT JOIN LATERAL (
    SELECT seq, ts, type, step_id, node_id, data, brief FROM events
    WHERE events.tenant_id = runs.tenant_id AND events.run_id = runs.run_id
        AND seq > %(after)s::integer
    ORDER BY seq LIMIT %(limit)s
) e ON true
WHERE runs.tenant_id = %(tenant)s AND runs.run_id = %(run_id)s AND runs.request IS NOT NULL
ORDER BY e.seq
"""
"""Return a run's status and its events in one consistent read."""

JOURNAL = f"""
SELECT {", ".join(column.name for column in JOURNAL_COLUMNS)} FROM journal
WHERE tenant_id = %(tenant)s AND run_id = %(run_id)s ORDER BY seq
"""  # noqa: S608
CALLS_AT_ONCE = 50
"""Calls to parse before yielding to the event loop."""

PAYLOADS = """
SELECT call_key, request_hash, charge, outcome, value, node, request FROM (
    SELECT *, sum(
        coalesce(octet_length(request::text), 0) + coalesce(octet_length(value::text), 0)
    ) OVER (ORDER BY seq) AS bytes_so_far
    FROM journal
    WHERE tenant_id = %(tenant)s AND run_id = %(run_id)s AND call_key IS NOT NULL
    AND (%(keys)s::text[] IS NULL OR call_key = ANY(%(keys)s::text[]))
    AND (%(numbers)s::int[] IS NULL OR seq = ANY(%(numbers)s::int[]))
) call
WHERE bytes_so_far <= %(max_bytes)s ORDER BY seq
"""
"""Return the first calls of a run with their requests and results, up to a total size in bytes."""

CALL = f"""
SELECT * FROM journal
WHERE tenant_id = %(tenant)s AND run_id = %(run_id)s AND seq = ANY(ARRAY(
    SELECT seq FROM calls
    WHERE tenant_id = %(tenant)s AND run_id = %(run_id)s AND seq > %(seq)s AND CASE
        WHEN brief IS NULL THEN substr(node ->> 'parent_id', 2)::bigint = %(seq)s
            AND node ->> 'name' = '{ATTEMPT}' AND node ->> 'kind' = 'system'
        WHEN strpos(brief::text, '"{ATTEMPT}"') = 0 THEN false
        ELSE brief ->> 0 = 'system' AND brief ->> 1 = '{ATTEMPT}'
            AND (brief ->> 4)::bigint = %(seq)s END
    UNION ALL VALUES (1), (%(seq)s)
)) ORDER BY seq
"""  # noqa: S608
"""Return a call, its attempts and the run's root.

The view would build the CallNode of each call of the run to compare it.
"""

NODES = """
SELECT string_agg(node::text, ',' ORDER BY seq) FROM journal
WHERE tenant_id = %(tenant)s AND run_id = %(run_id)s
GROUP BY seq / 100 ORDER BY seq / 100
"""
"""Return the CallNodes of a run, a hundred in each row, separated by commas."""

CONVERSATION = """
WITH asked AS (
    SELECT seq, request FROM journal
    WHERE tenant_id = %(tenant)s AND run_id = %(run_id)s AND seq <= %(seq)s
        AND request IS NOT NULL
        AND %(call_key)s IN (call_key, request -> 'after' ->> 'call_key')
), named AS (
    SELECT coalesce(message ->> 'reply_of', message ->> 'result_of') AS call_key
    FROM asked, json_array_elements(request -> 'messages') AS message
)
SELECT call_key, request_hash, charge, outcome, value, node, request FROM (
    SELECT *, sum(
        coalesce(octet_length(request::text), 0) + coalesce(octet_length(value::text), 0)
    ) OVER (ORDER BY seq DESC) AS bytes_so_far
    FROM journal WHERE tenant_id = %(tenant)s AND run_id = %(run_id)s AND seq <= %(seq)s
        AND (seq IN (SELECT seq FROM asked) OR call_key IN (SELECT call_key FROM named))
) call
WHERE bytes_so_far <= %(max_bytes)s ORDER BY seq
"""
"""Return the calls of a conversation up to a given call, and the calls that they reference.

If they exceed the byte limit, only the newest calls are returned.
"""

STREAMED = """
SELECT step_id, (data ->> 'turn_number')::int AS turn, (data ->> 'offset')::int AS offset,
    data ->> 'content' AS content
FROM events AS part
WHERE tenant_id = %(tenant)s AND run_id = %(run_id)s AND type = 'content_chunk' AND data ? 'content'
    AND seq > coalesce((
        SELECT max(seq) FROM events AS ended WHERE ended.tenant_id = part.tenant_id
            AND ended.run_id = part.run_id AND ended.step_id = part.step_id
            AND ended.type IN ('usage', '~u')
    ), 0)
ORDER BY seq
"""
"""Return the streamed parts of a run's unfinished answers, by step."""

_IS_START = "WHERE type = ANY(%(starts)s::text[])"
_OF_START = f"max(seq) FILTER ({_IS_START})"
_OF_END = "max(seq) FILTER (WHERE type = ANY(%(ends)s::text[]))"
OPEN_STARTS = f"""
WITH open AS MATERIALIZED (
    SELECT {_OF_START} AS seq, min(seq) FILTER ({_IS_START}) AS first FROM events
    WHERE tenant_id = %(tenant)s AND run_id = %(run_id)s
        AND (type = ANY(%(starts)s::text[]) OR type = ANY(%(ends)s::text[]))
    GROUP BY coalesce(step_id, ''), CASE WHEN type LIKE 'step.%%' THEN NULL
        ELSE coalesce(once_key, node_id, '') END
    HAVING {_OF_START} > coalesce({_OF_END}, 0)
)
SELECT start.* FROM open, LATERAL (
    SELECT seq, type, step_id, node_id, data, brief, once_key FROM events
    WHERE tenant_id = %(tenant)s AND run_id = %(run_id)s AND seq = open.seq OFFSET 0
) start ORDER BY first
"""  # noqa: S608
"""Return the start events of a run that have no end event, as in ``runs/journal/event_log.py``.

A resumed step is ordered by its first start, which precedes all starts inside it.

The short deduplication keys of a start and its end are equal; those of steps and calls have none.
An anti-join would take quadratic time before the table has statistics.
"""

MAX_RECEIPT_CALLS = 100
"""Maximum number of calls listed in the response to a cancel request."""


@dataclass(slots=True)
class PostgresRunReader:
    """Reads runs from Postgres; see :mod:`caseworker.runs.ports` for the rules."""

    engines: Engines
    journal: PostgresJournal

    async def get(self, key: RunKey) -> Run | None:
        """Return a run; None if it does not exist, even if a cancel request is stored for it."""
        return await self._one(RUN, key.tenant, key.run_id)

    async def earlier(self, key: RunKey, idempotency_key: str | None) -> Run | None:
        """Return the run that has an idempotency key; without a key, return the run ``key``."""
        if idempotency_key is None:
            return await self.get(key)
        return await self._one(RUN_OF_KEY, key.tenant, idempotency_key)

    async def _one(self, statement: str, tenant: str, value: str) -> Run | None:
        async with transaction(self.engines.work, tenant) as connection:
            rows = await connection.exec_driver_sql(statement, (tenant, value))
        row = rows.mappings().one_or_none()
        return None if row is None else run_from_row(row)

    def _listing(
        self, tenant: str, run_filter: RunFilter
    ) -> AbstractAsyncContextManager[AsyncConnection]:
        wall = _wall(tenant, run_filter)
        return transaction(self.engines.work, wall, statement_ms=LIST_STATEMENT_MS)

    async def find(self, tenant: str, run_filter: RunFilter) -> Page[Run]:
        """Return a page of runs, newest first."""
        page = page_query(tenant, run_filter)
        async with self._listing(tenant, run_filter) as connection:
            rows = (await connection.execute(page)).mappings().all()
        listed = [run_from_row(row) for row in rows[: run_filter.limit]]
        if not rows or rows[0]["there_are"] == len(listed):
            return Page(listed, None)
        last = listed[-1]
        return Page(listed, encode_cursor("runs", [last.created_at.isoformat(), last.key.run_id]))

    async def events(self, key: RunKey, *, after: int, limit: int) -> EventPage | None:
        """Return the events after the sequence number ``after``, and whether the run had ended."""
        parameters = {"tenant": key.tenant, "run_id": key.run_id, "after": after, "limit": limit}
        async with transaction(self.engines.work, key.tenant) as connection:
            rows = (await connection.exec_driver_sql(EVENTS, parameters)).mappings().all()
        if not rows:
            return None
        run_events = [event_from_row(row) for row in rows if row["seq"] is not None]
        return EventPage(run_events, finished=rows[0]["status"] in TERMINAL)

    def listening(self, key: RunKey) -> AbstractContextManager[Notification]:
        """Return a context manager that yields an event, set whenever the run has new events.

        Leaving the context stops listening.
        """
        return self.journal.notifier.listening(key)

    async def calls(self, key: RunKey) -> Sequence[CallRecord]:
        """Return the journal of a run, in the order of its CallNodes."""
        async with transaction(self.engines.work, key.tenant) as connection:
            return await journal_of(connection, key)

    async def started_calls(self, key: RunKey) -> Sequence[CallRecord]:
        """Return the last LLM and tool calls of a run that may have taken effect."""
        async with transaction(self.engines.work, key.tenant) as connection:
            last = STARTED_CALLS.where(of_run(journal, key))
            rows = (await connection.execute(last)).mappings().all()
        return [call_from_row(row) for row in reversed(rows)]

    async def spent(self, key: RunKey) -> SpentSoFar:
        """Return the usage of a run according to its journal."""
        parameters = {"tenant": key.tenant, "run_id": key.run_id}
        async with transaction(self.engines.work, key.tenant) as connection:
            sums = (await connection.exec_driver_sql(SPENT, parameters)).one()
        return SpentSoFar(charge=charge_of(sums.charge), seconds=sums.seconds)

    async def call(self, key: RunKey, node_id: str) -> Sequence[CallRecord]:
        """Return the records of one call, with its request and attempts, and of the run's root."""
        parameters = {"tenant": key.tenant, "run_id": key.run_id, "seq": number_of(node_id)}
        async with transaction(self.engines.work, key.tenant) as connection:
            rows = (await connection.exec_driver_sql(CALL, parameters)).mappings().all()
        return [call_from_row(row) for row in rows]

    async def payloads(
        self,
        key: RunKey,
        *,
        max_bytes: int,
        call_keys: Sequence[str] | None = None,
        node_ids: Sequence[str] | None = None,
    ) -> Sequence[CallRecord]:
        """Return the first calls of a run, with requests and results of up to ``max_bytes``."""
        parameters = {
            "tenant": key.tenant,
            "run_id": key.run_id,
            "keys": None if call_keys is None else list(call_keys),
            "numbers": None if node_ids is None else list(map(number_of, node_ids)),
            "max_bytes": max_bytes,
        }
        async with transaction(self.engines.work, key.tenant) as connection:
            return await _read_calls(connection, PAYLOADS, parameters)

    async def conversation(
        self, key: RunKey, call_key: str, *, until: CallRecord, max_bytes: int
    ) -> Sequence[CallRecord]:
        """Return the calls of a conversation, and the calls that they reference, in order."""
        parameters = {
            "tenant": key.tenant,
            "run_id": key.run_id,
            "seq": int(until.node_id[1:]),
            "call_key": call_key,
            "max_bytes": max_bytes,
        }
        async with transaction(self.engines.work, key.tenant) as connection:
            return await _read_calls(connection, CONVERSATION, parameters)

    async def nodes(self, key: RunKey) -> Sequence[Mapping[str, Any]]:
        """Return the stored CallNodes of a run, in the order of their IDs."""
        parameters = {"tenant": key.tenant, "run_id": key.run_id}
        async with transaction(self.engines.work, key.tenant) as connection:
            texts = (await connection.exec_driver_sql(NODES, parameters)).scalars().all()
        return await asyncio.to_thread(_read_all, texts)  # would block the event loop


def _read_all(texts: Sequence[str]) -> list[Mapping[str, Any]]:
    return [node for text in texts for node in from_json(f"[{text}]")]


def _wall(tenant: str, run_filter: RunFilter) -> str | None:
    """Return the tenant that restricts a listing, or None where that would prevent index use.

    Row-level security prevents the use of the indexes on metadata, agents and threads, because
    their operators are not leakproof. In that case only the condition in the query separates
    tenants.
    """
    indexed = run_filter.metadata, run_filter.agent, run_filter.thread_id
    return None if any(indexed) else tenant


async def read_run(connection: AsyncConnection, key: RunKey) -> Run:
    """Return a run, which must exist."""
    rows = await connection.exec_driver_sql(RUN, (key.tenant, key.run_id))
    return run_from_row(rows.mappings().one())


STARTED_CALLS = (
    select(*JOURNAL_COLUMNS)
    .where(
        journal.c.node["kind"].astext.in_(("llm", "tool")),
        journal.c.outcome.is_distinct_from(CallOutcome.NOT_MADE.value),
    )
    .order_by(journal.c.seq.desc())
    .limit(MAX_RECEIPT_CALLS)
)
"""Select the last LLM and tool calls that may have taken effect: a call in the journal has passed
its barrier or is about to, except a call with the outcome "not made"."""


async def journal_of(connection: AsyncConnection, key: RunKey) -> Sequence[CallRecord]:
    """Return the journal of a run, in the order of its CallNodes."""
    return await _read_calls(connection, JOURNAL, {"tenant": key.tenant, "run_id": key.run_id})


async def _read_calls(
    connection: AsyncConnection, statement: str, parameters: Mapping[str, Any]
) -> Sequence[CallRecord]:
    """Return calls, parsed a few at a time: parsing thousands at once would block the loop."""
    raw = await connection.get_raw_connection()
    driver = cast("psycopg.AsyncConnection[Any]", raw.driver_connection)
    records = list[CallRecord]()
    async with driver.cursor(row_factory=dict_row) as cursor:
        await cursor.execute(statement, parameters)
        while rows := await cursor.fetchmany(CALLS_AT_ONCE):
            records += map(call_from_row, rows)
            await asyncio.sleep(0)
    return records


async def last_seq_of(connection: AsyncConnection, key: RunKey) -> int:
    """Return the sequence number of a run's last event, or 0 without events.

    An earlier statement of this transaction must have locked the run's row. If a statement itself
    waits for the lock, it does not see the events that were committed during the wait.
    """
    last = select(func.max(events.c.seq)).where(of_run(events, key))
    return await connection.scalar(last) or 0


async def streamed_in(
    connection: AsyncConnection, key: RunKey
) -> dict[tuple[str | None, str], Any]:
    """Return the answers whose streaming was not finished, by step ID and event type.

    Each value holds the number of the agent's turn and the text streamed so far.
    """
    texts: dict[tuple[str | None, str], tuple[int, str]] = {}
    parameters = {"tenant": key.tenant, "run_id": key.run_id}
    for row in await connection.exec_driver_sql(STREAMED, parameters):
        of = row.step_id, CONTENT_CHUNK
        _, before = texts.get(of, (0, ""))
        texts[of] = row.turn, before[: row.offset] + row.content
    return texts


async def open_starts_of(connection: AsyncConnection, key: RunKey) -> tuple[Event, ...]:
    """Return the start events of a run that have no end event, in order."""
    kinds = {"starts": stored_types(STARTS), "ends": stored_types(ENDS)}
    parameters = {"tenant": key.tenant, "run_id": key.run_id, **kinds}
    rows = await connection.exec_driver_sql(OPEN_STARTS, parameters)
    return tuple(_start_event(row) for row in rows.mappings())


def _start_event(row: RowMapping) -> Event:
    kind, data = whole_event(row)
    step_id, once_key = row["step_id"], row["once_key"]
    if once_key is not None:
        once_key = whole_once(step_id, row["type"], once_key)
    return Event(type=kind, step_id=step_id, node_id=row["node_id"], data=data, once_key=once_key)


async def once_keys_of(connection: AsyncConnection, key: RunKey) -> frozenset[str]:
    """Return the deduplication keys of a run's events."""
    key_of = events.c.step_id, events.c.type, events.c.once_key
    keyed = select(*key_of).where(of_run(events, key), events.c.once_key.is_not(None))
    return frozenset(whole_once(*row) for row in await connection.execute(keyed))
