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
from caseworker.runs.postgres.tables import INSTANT, runs
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


def page_of(tenant: str, wanted: RunFilter) -> Select[Any]:
    """Return the query for a page of runs, newest first, plus one run if there are more.

    If the page exceeds ``max_bytes``, only runs that start within that limit are returned. Each row
    has a column ``there_are``: the number of runs on the page without that limit.

    Raises:
        InvalidRunError: the cursor is invalid.
    """
    conditions = [*_indexed_conditions(tenant, wanted), *_row_conditions(tenant, wanted)]
    if wanted.metadata:
        ids = _newest_with_metadata(tenant, wanted, conditions)
        conditions = [runs.c.tenant_id == tenant, runs.c.run_id == any_(ids)]
    page = _PAGE.where(*conditions).limit(wanted.limit + 1).subquery("page")
    counted = _COUNTED.select_from(page).subquery("counted")
    found = _FOUND.select_from(counted)
    return found if wanted.max_bytes is None else found.where(wanted.max_bytes > _BEFORE)


def stoppable(tenant: str, wanted: RunFilter) -> Select[Any]:
    """Return the query for the IDs of the oldest matching runs that can be cancelled.

    These are runs that have not ended and have no cancel request.
    """
    if wanted.metadata:
        uncancelled = runs.c.cancel_requested_at.is_(None)
        return with_metadata(
            tenant, wanted, [uncancelled], statuses=_STOPPABLE, oldest_first=True
        ).limit(wanted.limit)
    # All are read and sorted: the oldest runs have usually ended, and reading by age would read
    # those first.
    every = select(*_PLACE).where(*can_be_stopped(tenant, wanted)).offset(0).subquery("every")
    return select(every.c.run_id).order_by(every.c.created_at, every.c.run_id).limit(wanted.limit)


def can_be_stopped(tenant: str, wanted: RunFilter) -> list[ColumnElement[bool]]:
    """Return the conditions for matching runs that can be cancelled."""
    return [
        *_indexed_conditions(tenant, wanted),
        *_row_conditions(tenant, wanted),
        *_contains(wanted.metadata),
        _column(wanted, runs.c.status).in_(_STOPPABLE),
        runs.c.cancel_requested_at.is_(None),
    ]


def with_metadata(
    tenant: str,
    wanted: RunFilter,
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
    before = [_day_of(at) for at in (wanted.created_before, _after(wanted)) if at]
    newest: ColumnElement[int] = func.least(_day_of_run(tenant, oldest=False), *before)
    after = [_day_of(wanted.created_after)] if wanted.created_after else []
    oldest = func.greatest(_day_of_run(tenant, oldest=True), *after)
    if unless is not None:
        newest = case((not_(unless), newest))
    bounds = (oldest, newest, 1) if oldest_first else (newest, oldest, -1)
    days = func.generate_series(*bounds).table_valued("day").render_derived(name="days")
    searched = [_terms_of_day(tenant, terms) for terms in _searched_terms(wanted, statuses)]
    order = _PLACE if oldest_first else _NEWEST_FIRST
    of_day = (
        select(runs.c.run_id)
        .where(
            runs.c.request.is_not(None),
            literal_column("metadata <> '{}'", Boolean),
            literal_column(TERMS, JSONB).op("@>")(any_(array(searched))),
            *_contains(wanted.metadata),
            *_row_conditions(tenant, wanted),
            *conditions,
        )
        .order_by(*order)
        .limit(wanted.limit + 1)
        .lateral("of_day")
    )
    return select(of_day.c.run_id).select_from(days.join(of_day, true()))


def _newest_with_metadata(
    tenant: str, wanted: RunFilter, conditions: Sequence[ColumnElement[bool]]
) -> ColumnElement[Any]:
    """Return an array with the IDs of the newest runs that match ``conditions`` and the metadata.

    The newest runs are checked one by one, which is fastest for frequent metadata. The index is
    only searched if these do not fill the page.
    """
    most = wanted.limit + 1
    matches = and_(*_contains(wanted.metadata)).label("matches")
    newest = select(*_PLACE, matches).where(*conditions).order_by(*_NEWEST_FIRST).limit(CHECKED)
    checked = newest.cte("checked")
    near = (
        select(checked.c.run_id)
        .where(checked.c.matches)
        .order_by(checked.c.created_at.desc(), checked.c.run_id.desc())
        .limit(most)
        .subquery("near")
    )
    matching = func.count().filter(checked.c.matches)
    enough = select(or_(matching >= most, func.count() < CHECKED)).select_from(checked)
    far = with_metadata(tenant, wanted, unless=enough.scalar_subquery()).limit(most).subquery("far")
    ids = union_all(select(near.c.run_id), select(far.c.run_id))
    return func.array(ids.scalar_subquery())


def _indexed_conditions(tenant: str, wanted: RunFilter) -> list[ColumnElement[bool]]:
    """Return the conditions of a filter that an index in the order of the list decides."""
    found = [runs.c.tenant_id == tenant, runs.c.request.is_not(None)]
    if wanted.status:
        found.append(_column(wanted, runs.c.status) == wanted.status.value)
    if wanted.kind:
        found.append(_column(wanted, runs.c.kind) == wanted.kind.value)
    if wanted.agent is not None:
        name = literal_column(AGENT_NAME, Text)
        found += [literal_column(RUNS_AN_AGENT, Boolean), name == wanted.agent]
    return found


def _row_conditions(tenant: str, wanted: RunFilter) -> list[ColumnElement[bool]]:
    """Return the other conditions of a filter, except those of its metadata."""
    found = list[ColumnElement[bool]]()
    if wanted.thread_id is not None:
        found.append(literal_column("request #>> '{chat,thread_id}'", Text) == wanted.thread_id)
        # An ID may be used again after the deletion of its thread.
        since = text(_THREAD_SINCE).bindparams(thread_tenant=tenant, thread=wanted.thread_id)
        found.append(runs.c.created_at >= since.columns(created_at=INSTANT).scalar_subquery())
    if wanted.created_after:
        found.append(runs.c.created_at > wanted.created_after)
    if wanted.created_before:
        found.append(runs.c.created_at < wanted.created_before)
    if wanted.cursor is not None:
        place = decode_cursor("runs", wanted.cursor, _place_in)
        found.append(tuple_(*_PLACE) < tuple_(*map(literal, place)))
    return found


def _column(wanted: RunFilter, column: ColumnElement[Any]) -> ColumnElement[Any]:
    """Return an expression for the status or kind, which of an agent only its index decides.

    Another index does not contain the agent, so the request of each row would be read.
    """
    return column if wanted.agent is None else func.coalesce(column, literal_column("''", Text))


def _contains(wanted: Mapping[str, str]) -> list[ColumnElement[bool]]:
    """Return the conditions that the metadata of a run has all values."""
    return [
        or_(*(runs.c.metadata.contains({key: one}) for one in json_of_text(value)))
        for key, value in wanted.items()
    ]


def _searched_terms(wanted: RunFilter, statuses: Sequence[RunStatus]) -> list[dict[str, Any]]:
    """Return the alternatives that the index of metadata is searched for."""
    read = {key: json_of_text(value) for key, value in wanted.metadata.items()}
    texts = {key: values[0] for key, values in read.items() if len(values) == 1}
    others = [[(key, one) for one in values] for key, values in read.items() if len(values) > 1]
    named = {f"k{wanted.kind}": None} if wanted.kind else {}
    named |= {f"a{wanted.agent}": None} if wanted.agent is not None else {}
    named |= {f"s{wanted.status}": None} if wanted.status else {}
    return [
        {"m": texts | dict(each), **named, **({f"s{status}": None} if status else {})}
        for each in product(*others[:INDEXED_VARIANTS])
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


def _after(wanted: RunFilter) -> datetime | None:
    """Return the time of the last run before the page."""
    if wanted.cursor is None:
        return None
    at, _ = decode_cursor("runs", wanted.cursor, _place_in)
    return at


def _place_in(place: Any) -> tuple[datetime, str]:
    """Return the place of a cursor; the next page has rows that are less than it."""
    created_at, run_id = place
    if not _PLAIN.fullmatch(run_id):
        raise ValueError(run_id)
    return datetime.fromisoformat(created_at), run_id
