"""Builds the queries that select runs by a filter: pages of runs, and runs to cancel."""

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import product
from typing import Any

from sqlalchemy import (
    Boolean,
    ColumnElement,
    Integer,
    Select,
    Text,
    and_,
    any_,
    case,
    func,
    literal,
    literal_column,
    not_,
    null,
    or_,
    select,
    text,
    true,
    tuple_,
    union_all,
)
from sqlalchemy.dialects.postgresql import JSONB, array

from caseworker.platform.logs.redaction import LOOKAHEAD_CHARS
from caseworker.runs.ports import LISTED_INPUT_CHARS, RunFilter, json_of_text
from caseworker.runs.postgres.rows import decode_cursor
from caseworker.runs.postgres.tables import CALLER_JSON, INSTANT, runs
from caseworker.runs.run import TERMINAL, RunStatus

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

_CALLER_BYTES = " + ".join(f"octet_length({name}::text)" for name in CALLER_JSON)
_SIZE = f"({_CALLER_BYTES} + {RUN_BYTES})"
_ORDER = "created_at DESC, run_id DESC"
_ALL = literal_column("*", Text)
_COUNTED = select(
    _ALL,
    literal_column(f"sum({_SIZE}) OVER (ORDER BY {_ORDER}) - {_SIZE} AS before", Integer),
    literal_column("count(*) OVER () AS there_are", Integer),
)
_BEFORE = literal_column("before", Integer)
_ORDERED = select(_ALL).order_by(text(_ORDER))
"""Uses literal SQL: SQLAlchemy would compile thirty columns in each of the two enclosing queries.

That would take twice as long as the query itself.
"""

AGENT_NAME = """coalesce(request #>> '{graph_ref,name}', request #>> '{chat,agent,name}',
    request #>> '{graph,steps,0,data,external,name}')"""
RUNS_AN_AGENT = "(kind IN ('agent', 'external') OR request #>> '{chat,agent,name}' IS NOT NULL)"
"""Matches agent runs, external runs, and thread runs that a registered agent answers."""

DAY = "((created_at AT TIME ZONE 'UTC')::date - '2000-01-01'::date)"
"""SQL for the number of the day on which a run was accepted."""
_SEARCHED_AGENT = f"""coalesce(CASE WHEN kind IN ('agent', 'external') THEN {AGENT_NAME}
    ELSE request #>> '{{chat,agent,name}}' END, '')"""
TERMS = f"""jsonb_set('{{}}', ARRAY[tenant_id || ' ' || {DAY}],
    jsonb_set(jsonb_set(jsonb_set(jsonb_set('{{}}', '{{m}}', metadata),
        ARRAY['s' || status], 'null'), ARRAY['k' || kind], 'null'),
        ARRAY['a' || {_SEARCHED_AGENT}], 'null'))"""
"""SQL for the document that the index of metadata contains.

It has one key, of the tenant and the day. The index has no order, so a search goes from day to day,
and reads the entries of one tenant and one day. The value has the metadata as ``m``, and a key each
for the status, kind and agent, so that the index decides all of them together.
"""

CHECKED = 500
"""Number of runs whose metadata is checked one by one before the index of metadata is searched."""
INDEXED_VARIANTS = 3
"""Number of metadata values with two readings, such as 7, that the index decides; each doubles the
number of searches. Further ones are checked in the rows."""

_THREAD_SINCE = """
SELECT coalesce((SELECT created_at FROM threads
    WHERE tenant_id = :thread_tenant AND thread_id = :thread), '-infinity') AS created_at
"""

_PLAIN = re.compile(r"[\x20-\x7e]{1,200}")
"""A superset of valid run IDs that contains no text the database would reject."""

_PLACE = (runs.c.created_at, runs.c.run_id)
_NEWEST_FIRST = [column.desc() for column in _PLACE]
_STOPPABLE = [status for status in RunStatus if status not in TERMINAL]


def page_query(tenant: str, run_filter: RunFilter) -> Select[Any]:
    """Return the query for a page of runs, newest first, plus one run if there are more.

    If the page exceeds ``max_bytes``, only runs that start within that limit are returned. Each row
    has a column ``there_are``: the number of runs on the page without that limit.

    Raises:
        InvalidRunError: the cursor is invalid.
    """
    conditions = [*_indexed_conditions(tenant, run_filter), *_row_conditions(tenant, run_filter)]
    if run_filter.metadata:
        ids = _newest_with_metadata(tenant, run_filter, conditions)
        conditions = [runs.c.tenant_id == tenant, runs.c.run_id == any_(ids)]
    page = _PAGE.where(*conditions).limit(run_filter.limit + 1).subquery("page")
    counted = _COUNTED.select_from(page).subquery("counted")
    listed = _ORDERED.select_from(counted)
    return listed if run_filter.max_bytes is None else listed.where(run_filter.max_bytes > _BEFORE)


def stoppable(tenant: str, run_filter: RunFilter) -> Select[Any]:
    """Return the query for the IDs of the oldest matching runs that can be cancelled.

    These are runs that have not ended and have no cancel request.
    """
    if run_filter.metadata:
        uncancelled = runs.c.cancel_requested_at.is_(None)
        return with_metadata(
            tenant, run_filter, [uncancelled], statuses=_STOPPABLE, oldest_first=True
        ).limit(run_filter.limit)
    # All are read and sorted: the oldest runs have usually ended, and reading by age would read
    # those first.
    every = select(*_PLACE).where(*can_be_stopped(tenant, run_filter)).offset(0).subquery("every")
    return (
        select(every.c.run_id).order_by(every.c.created_at, every.c.run_id).limit(run_filter.limit)
    )


def can_be_stopped(tenant: str, run_filter: RunFilter) -> list[ColumnElement[bool]]:
    """Return the conditions for matching runs that can be cancelled."""
    return [
        *_indexed_conditions(tenant, run_filter),
        *_row_conditions(tenant, run_filter),
        *_contains(run_filter.metadata),
        _column(run_filter, runs.c.status).in_(_STOPPABLE),
        runs.c.cancel_requested_at.is_(None),
    ]


def with_metadata(
    tenant: str,
    run_filter: RunFilter,
    conditions: Sequence[ColumnElement[bool]] = (),
    *,
    statuses: Sequence[RunStatus] = (),
    oldest_first: bool = False,
    unless: ColumnElement[bool] | None = None,
) -> Select[Any]:
    """Return a query for IDs of runs with the metadata of a filter, in the order of their age.

    It searches the index of metadata day by day, so a ``LIMIT`` ends it early. ``conditions`` and
    ``statuses`` restrict the filter further; with ``unless``, the query returns nothing.
    """
    oldest, newest = _days_between(tenant, run_filter)
    if unless is not None:
        newest = case((not_(unless), newest))
    bounds = (oldest, newest, 1) if oldest_first else (newest, oldest, -1)
    days = func.generate_series(*bounds).table_valued("day").render_derived(name="days")
    searched = [_terms_of_day(tenant, terms) for terms in _searched_terms(run_filter, statuses)]
    of_day = (
        select(runs.c.run_id)
        .where(
            runs.c.request.is_not(None),
            literal_column("metadata <> '{}'", Boolean),
            literal_column(TERMS, JSONB).op("@>")(any_(array(searched))),
            *_contains(run_filter.metadata),
            *_row_conditions(tenant, run_filter),
            *conditions,
        )
        .order_by(*(_PLACE if oldest_first else _NEWEST_FIRST))
        .limit(run_filter.limit + 1)
        .lateral("of_day")
    )
    return select(of_day.c.run_id).select_from(days.join(of_day, true()))


def _days_between(
    tenant: str, run_filter: RunFilter
) -> tuple[ColumnElement[int], ColumnElement[int]]:
    """Return the days of the oldest and of the newest run that a filter may select."""
    before = [_day_of(at) for at in (run_filter.created_before, _after(run_filter)) if at]
    after = [_day_of(run_filter.created_after)] if run_filter.created_after else []
    oldest = func.greatest(_day_of_run(tenant, oldest=True), *after)
    return oldest, func.least(_day_of_run(tenant, oldest=False), *before)


def _newest_with_metadata(
    tenant: str, run_filter: RunFilter, conditions: Sequence[ColumnElement[bool]]
) -> ColumnElement[Any]:
    """Return an array with the IDs of the newest runs that match ``conditions`` and the metadata.

    The newest runs are checked one by one, which is fastest for frequent metadata. The index is
    only searched if these do not fill the page.
    """
    limit = run_filter.limit + 1
    matches = and_(*_contains(run_filter.metadata)).label("matches")
    newest = select(*_PLACE, matches).where(*conditions).order_by(*_NEWEST_FIRST).limit(CHECKED)
    checked = newest.cte("checked")
    near = (
        select(checked.c.run_id)
        .where(checked.c.matches)
        .order_by(checked.c.created_at.desc(), checked.c.run_id.desc())
        .limit(limit)
        .subquery("near")
    )
    matching = func.count().filter(checked.c.matches)
    is_full = select(or_(matching >= limit, func.count() < CHECKED)).select_from(checked)
    far = (
        with_metadata(tenant, run_filter, unless=is_full.scalar_subquery())
        .limit(limit)
        .subquery("far")
    )
    ids = union_all(select(near.c.run_id), select(far.c.run_id))
    return func.array(ids.scalar_subquery())


def _indexed_conditions(tenant: str, run_filter: RunFilter) -> list[ColumnElement[bool]]:
    """Return the conditions of a filter that an index in the order of the list decides."""
    conditions = [runs.c.tenant_id == tenant, runs.c.request.is_not(None)]
    if run_filter.status:
        conditions.append(_column(run_filter, runs.c.status) == run_filter.status.value)
    if run_filter.kind:
        conditions.append(_column(run_filter, runs.c.kind) == run_filter.kind.value)
    if run_filter.agent is not None:
        name = literal_column(AGENT_NAME, Text)
        conditions += [literal_column(RUNS_AN_AGENT, Boolean), name == run_filter.agent]
    return conditions


def _row_conditions(tenant: str, run_filter: RunFilter) -> list[ColumnElement[bool]]:
    """Return the other conditions of a filter, except those of its metadata."""
    conditions = list[ColumnElement[bool]]()
    if run_filter.thread_id is not None:
        conditions.append(
            literal_column("request #>> '{chat,thread_id}'", Text) == run_filter.thread_id
        )
        # An ID may be used again after the deletion of its thread.
        since = text(_THREAD_SINCE).bindparams(thread_tenant=tenant, thread=run_filter.thread_id)
        conditions.append(runs.c.created_at >= since.columns(created_at=INSTANT).scalar_subquery())
    if run_filter.created_after:
        conditions.append(runs.c.created_at > run_filter.created_after)
    if run_filter.created_before:
        conditions.append(runs.c.created_at < run_filter.created_before)
    if run_filter.cursor is not None:
        place = decode_cursor("runs", run_filter.cursor, _place_in)
        conditions.append(tuple_(*_PLACE) < tuple_(*map(literal, place)))
    return conditions


def _column(run_filter: RunFilter, column: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return an expression for the status or kind, which of an agent only its index decides.

    Another index does not contain the agent, so the request of each row would be read.
    """
    return column if run_filter.agent is None else func.coalesce(column, literal_column("''", Text))


def _contains(pairs: Mapping[str, str]) -> list[ColumnElement[bool]]:
    """Return the conditions that the metadata of a run has all values."""
    return [
        or_(*(runs.c.metadata.contains({key: one}) for one in json_of_text(value)))
        for key, value in pairs.items()
    ]


def _searched_terms(run_filter: RunFilter, statuses: Sequence[RunStatus]) -> list[dict[str, Any]]:
    """Return the alternatives that the index of metadata is searched for."""
    read = {key: json_of_text(value) for key, value in run_filter.metadata.items()}
    texts = {key: values[0] for key, values in read.items() if len(values) == 1}
    ambiguous = [[(key, one) for one in values] for key, values in read.items() if len(values) > 1]
    keys = {f"k{run_filter.kind}": None} if run_filter.kind else {}
    keys |= {f"a{run_filter.agent}": None} if run_filter.agent is not None else {}
    keys |= {f"s{run_filter.status}": None} if run_filter.status else {}
    return [
        {"m": texts | dict(each), **keys, **({f"s{status}": None} if status else {})}
        for each in product(*ambiguous[:INDEXED_VARIANTS])
        for status in statuses or (None,)
    ]


def _terms_of_day(tenant: str, terms: Mapping[str, Any]) -> ColumnElement[Any]:
    key = literal(f"{tenant} ", Text).concat(literal_column("days.day::text", Text))
    return func.jsonb_set(literal_column("'{}'", JSONB), array([key]), literal(terms, JSONB))


def _day_of(at: datetime) -> ColumnElement[int]:
    return (
        select(literal_column(DAY, Integer))
        .select_from(select(literal(at, INSTANT).label("created_at")).subquery("instant"))
        .scalar_subquery()
    )


def _day_of_run(tenant: str, *, oldest: bool) -> ColumnElement[int]:
    """Return the day on which the oldest or newest run of a tenant was accepted."""
    runs_of_tenant = runs.c.tenant_id == tenant, runs.c.request.is_not(None)
    order = _PLACE if oldest else _NEWEST_FIRST
    day = select(literal_column(DAY, Integer)).select_from(runs).where(*runs_of_tenant)
    return day.order_by(*order).limit(1).scalar_subquery()


def _after(run_filter: RunFilter) -> datetime | None:
    """Return the time of the last run before the page."""
    if run_filter.cursor is None:
        return None
    at, _ = decode_cursor("runs", run_filter.cursor, _place_in)
    return at


def _place_in(place: Any) -> tuple[datetime, str]:
    """Return the place of a cursor; the next page has rows that are less than it."""
    created_at, run_id = place
    if not _PLAIN.fullmatch(run_id):
        raise ValueError(run_id)
    return datetime.fromisoformat(created_at), run_id
