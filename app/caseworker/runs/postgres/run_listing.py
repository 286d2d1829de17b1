"""Builds the queries that select runs by a filter: pages of runs, and runs to cancel."""

import re
from datetime import datetime
from typing import Any

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Integer,
    Select,
    Text,
    literal,
    literal_column,
    null,
    or_,
    select,
    text,
    tuple_,
)
from sqlalchemy.dialects.postgresql import JSONB

from caseworker.platform.logs.redaction import LOOKAHEAD_CHARS
from caseworker.runs.ports import LISTED_INPUT_CHARS, RunFilter, json_of_text
from caseworker.runs.postgres.rows import decode_cursor
from caseworker.runs.postgres.tables import INSTANT, runs
from caseworker.runs.run import TERMINAL, RunKind, RunStatus

LIST_STATEMENT_MS = 3000
"""Statement timeout of the page query in milliseconds; a filter without an index scans all runs."""
RUN_BYTES = 1200
"""Approximate size of a run on a page in bytes, without its metadata."""
LISTED_CHARS = LISTED_INPUT_CHARS + LOOKAHEAD_CHARS
"""Number of characters to read from a run's input: the shown ones, plus the look-ahead for
redaction."""

_LISTED_REQUEST: ColumnElement[Any] = literal_column(
    f"""(SELECT (r - '{{graph,inputs,chat,input}}'::text[]) || jsonb_strip_nulls(jsonb_build_object(
        'input', left(CASE jsonb_typeof(r #> '{{inputs,default}}') WHEN 'string'
            THEN r #>> '{{inputs,default}}' ELSE r ->> 'input' END, {LISTED_CHARS}),
        'graph', CASE r ->> 'kind' WHEN 'external' THEN
            (r -> 'graph') #- '{{steps,0,data,external,tools}}'::text[] END,
        'chat', (r -> 'chat') || '{{"messages": [], "user_tools": []}}'::jsonb))
    FROM (SELECT runs.request || '{{}}'::jsonb AS r OFFSET 0) AS decompressed)""",  # noqa: S608
    JSONB(),
).label("request")
_LEFT_OUT: dict[str, ColumnElement[Any]] = {
    "request": _LISTED_REQUEST,
    "result": null().label("result"),
}
_LISTED = [_LEFT_OUT.get(column.name, column) for column in runs.c]
"""Columns of a page. Graphs and results are omitted, because a
listing does not show them. The settings of external runs are kept for their names."""

_PAGE = select(*_LISTED).order_by(runs.c.created_at.desc(), runs.c.run_id.desc())

_SIZE = f"(octet_length(metadata::text) + {RUN_BYTES})"
_ORDER = "created_at DESC, run_id DESC"
_ALL = literal_column("*", Text)
_COUNTED = select(
    _ALL,
    literal_column(f"sum({_SIZE}) OVER (ORDER BY {_ORDER}) - {_SIZE} AS before", Integer),
    literal_column("count(*) OVER () AS there_are", Integer),
)
_BEFORE = literal_column("before", Integer)
_FOUND = select(_ALL).order_by(text(_ORDER))
"""Uses literal SQL: SQLAlchemy would compile thirty columns in each of the two enclosing queries.

That would take twice as long as the query itself.
"""

_HAS_METADATA: ColumnElement[bool] = literal_column("runs.metadata <> '{}'", Boolean)

AGENT_NAME = """coalesce(request #>> '{graph_ref,name}', request #>> '{chat,agent,name}',
    request #>> '{graph,steps,0,data,external,name}')"""
_THREAD_SINCE = """
SELECT coalesce((SELECT created_at FROM threads
    WHERE tenant_id = :thread_tenant AND thread_id = :thread), '-infinity') AS created_at
"""
RUNS_AN_AGENT = "(kind IN ('agent', 'external') OR request #>> '{chat,agent,name}' IS NOT NULL)"
"""Matches agent runs, external runs, and thread runs that a registered agent answers."""

_PLAIN = re.compile(r"[\x20-\x7e]{1,200}")
"""A superset of valid run IDs that contains no text the database would reject."""

_STOPPABLE = [status.value for status in RunStatus if status not in TERMINAL]


def page_of(tenant: str, wanted: RunFilter) -> Select[Any]:
    """Return the query for a page of runs, newest first, plus one run if there are more.

    If the page exceeds ``max_bytes``, only runs that start within that limit are returned. Each row
    has a column ``there_are``: the number of runs on the page without that limit.

    Raises:
        InvalidRunError: the cursor is invalid.
    """
    query = _PAGE.where(*_conditions(tenant, wanted))
    if wanted.cursor is not None:
        after = decode_cursor("runs", wanted.cursor, _place_in)
        query = query.where(tuple_(runs.c.created_at, runs.c.run_id) < after)
    page = query.limit(wanted.limit + 1).subquery("page")
    counted = _COUNTED.select_from(page).subquery("counted")
    found = _FOUND.select_from(counted)
    return found if wanted.max_bytes is None else found.where(wanted.max_bytes > _BEFORE)


def stoppable(tenant: str, wanted: RunFilter) -> Select[Any]:
    """Return the query for the IDs of matching runs that can be cancelled.

    These are runs that have not ended and have no cancel request.
    """
    return select(runs.c.run_id).where(
        *_conditions(tenant, wanted),
        runs.c.status.in_(_STOPPABLE),
        runs.c.cancel_requested_at.is_(None),
    )


def _conditions(tenant: str, wanted: RunFilter) -> list[ColumnElement[bool]]:
    found = [runs.c.tenant_id == tenant, runs.c.request.is_not(None)]
    if wanted.status:
        found.append(runs.c.status == wanted.status.value)
    if wanted.kind:
        found.append(_of_kind(wanted.kind))
    if wanted.agent is not None:
        name = literal_column(AGENT_NAME, Text)
        found += [literal_column(RUNS_AN_AGENT, Boolean), name == wanted.agent]
    if wanted.thread_id is not None:
        found.append(literal_column("request #>> '{chat,thread_id}'", Text) == wanted.thread_id)
        # An ID may be used again after the deletion of its thread.
        since = text(_THREAD_SINCE).bindparams(thread_tenant=tenant, thread=wanted.thread_id)
        found.append(runs.c.created_at >= since.columns(created_at=INSTANT).scalar_subquery())
    for key, value in wanted.metadata.items():
        same = (runs.c.metadata.contains({key: one}) for one in json_of_text(value))
        found += [_HAS_METADATA, or_(*same)]
    if wanted.created_after:
        found.append(runs.c.created_at > wanted.created_after)
    if wanted.created_before:
        found.append(runs.c.created_at < wanted.created_before)
    return found


def _of_kind(kind: RunKind) -> ColumnElement[bool]:
    """Return the condition as literal SQL: partial indexes do not match a bound parameter."""
    return runs.c.kind == literal(kind.value, Text, literal_execute=True)


def _place_in(place: Any) -> ColumnElement[Any]:
    """Return the row value of a cursor; the next page has rows that are less than it."""
    created_at, run_id = place
    if not _PLAIN.fullmatch(run_id):
        raise ValueError(run_id)
    return tuple_(literal(datetime.fromisoformat(created_at)), literal(run_id))
