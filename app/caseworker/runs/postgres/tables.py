"""The tables of runs, and helpers for the tables of features.

Only columns are listed, for building queries; migrations define constraints and indexes.

See docs/internals.md, "One row decides".
"""

from typing import Any, Final

from sqlalchemy import (
    JSON,
    Boolean,
    Column,
    ColumnElement,
    DateTime,
    Double,
    Integer,
    MetaData,
    Numeric,
    SmallInteger,
    Table,
    Text,
    and_,
)
from sqlalchemy.dialects.postgresql import JSONB

from caseworker.runs.run import RunKey

metadata = MetaData()
"""The tables of the service; those of a feature are in its folder."""

INSTANT = DateTime(timezone=True)


def run_key() -> tuple[Column[str], Column[str]]:
    """Return the key columns of the run that a row belongs to."""
    return (Column("tenant_id", Text, primary_key=True), Column("run_id", Text, primary_key=True))


def columns(kind: Any, names: str, *, nullable: bool = True) -> list[Column[Any]]:
    """Return columns of one type, from names that are separated by spaces."""
    return [Column(name, kind, nullable=nullable) for name in names.split()]


CALLER_JSON: Final = ("metadata",)
"""JSON columns of ``runs`` that store a field of the same name as the caller sent it. Lists show
them in full, so they count towards the size of a page and of a stored run."""

runs = Table(
    "runs",
    metadata,
    *run_key(),
    *columns(Text, "kind status request_hash idempotency_key worker_id finish_reason"),
    *columns(Text, "cancel_requested_by cancel_reason concurrency_key creator"),
    *columns(JSONB, " ".join(("request", *CALLER_JSON, "result usage stop webhook"))),
    *columns(Integer, "fence attempts losses ended_calls", nullable=False),
    Column("priority", SmallInteger, nullable=False),
    Column("concurrency_limit", Integer),
    Column("reserved_cost_usd", Numeric),
    *columns(Double, "active_seconds", nullable=False),
    *columns(INSTANT, "created_at", nullable=False),
    *columns(INSTANT, "queued_at claimed_at started_at finished_at"),
    *columns(INSTANT, "cancel_requested_at cancel_delivered_at pending_cancel_expires_at"),
    Column("deadline", INSTANT),
)
"""Runs, and cancel requests that were stored before their run. In a row for the latter, ``request``
is null."""


def of_run(table: Table, key: RunKey) -> ColumnElement[bool]:
    """Return the SQL condition that selects the rows of a run in ``runs`` or another table."""
    return and_(table.c.tenant_id == key.tenant, table.c.run_id == key.run_id)


def _of_call() -> list[Column[Any]]:
    return [
        *run_key(),
        Column("seq", Integer, primary_key=True, autoincrement=False),
        *columns(Text, "status request_hash", nullable=False),
        *columns(Text, "call_key outcome"),
        *columns(JSONB, "charge node"),
        *columns(JSON, "value request"),
    ]


calls = Table("calls", metadata, *_of_call(), Column("brief", JSON), *columns(Text, "answer_of"))
"""Calls of runs. If ``brief`` is set, it contains charge and node in compact form; see the module
``brief``. If ``answer_of`` is set, the result of the run has texts of ``value``: its question, and
the answer of this step."""

journal = Table("journal", MetaData(), *_of_call())
"""View for reading calls, with charge and node in full, however they are stored.

``request`` is needed only to read a trace; code that executes runs leaves it out.
"""

JOURNAL_COLUMNS = [column for column in journal.c if column.name != "request"]

snapshots = Table("snapshots", metadata, *run_key(), Column("snapshot", JSON, nullable=False))
"""ExecutionGraphs of runs that an earlier release finished; no longer read."""

events = Table(
    "events",
    metadata,
    *run_key(),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("ts", INSTANT, nullable=False),
    Column("type", Text, nullable=False),
    *columns(Text, "step_id node_id"),
    Column("data", JSONB),
    *columns(Text, "once_key brief"),
)

workers = Table(
    "workers",
    metadata,
    Column("worker_id", Text, primary_key=True),
    Column("beat_at", INSTANT, nullable=False),
    Column("host", Text),
    Column("pid", Integer),
    Column("started_at", INSTANT, nullable=False),
    Column("drain_requested_at", INSTANT),
    Column("address", JSONB),
)

deaths = Table(
    "deaths",
    metadata,
    *run_key(),
    *columns(Integer, "count", nullable=False),
    *columns(JSON, "calls", nullable=False),
    *columns(Text, "cause", nullable=False),
    Column("suspect", Boolean, nullable=False),
)
"""Runs that executed code when their process died of a cause that its parent saw.

``calls`` are the names of the functions that a run executed. A ``suspect`` is executed alone in a
process until one of them has ended.
"""
