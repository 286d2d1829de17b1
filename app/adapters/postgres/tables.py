"""The columns that queries are built from; the migrations make constraints and indexes."""

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    ColumnElement,
    DateTime,
    Double,
    Identity,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    and_,
)
from sqlalchemy.dialects.postgresql import JSONB

from app.runs.run import RunKey

metadata = MetaData()

INSTANT = DateTime(timezone=True)


def _of_run() -> tuple[Column[str], Column[str]]:
    """Return the columns that name the run which a row belongs to."""
    return (Column("tenant_id", Text, primary_key=True), Column("run_id", Text, primary_key=True))


def _columns(kind: Any, names: str, *, nullable: bool = True) -> list[Column[Any]]:
    return [Column(name, kind, nullable=nullable) for name in names.split()]


runs = Table(
    "runs",
    metadata,
    *_of_run(),
    *_columns(Text, "kind status request_hash idempotency_key worker_id finish_reason"),
    *_columns(Text, "cancel_requested_by cancel_reason"),
    *_columns(JSONB, "request metadata result usage stop"),
    *_columns(Integer, "fence attempts", nullable=False),
    *_columns(Double, "active_seconds", nullable=False),
    *_columns(INSTANT, "created_at", nullable=False),
    *_columns(INSTANT, "queued_at claimed_at started_at finished_at"),
    *_columns(INSTANT, "cancel_requested_at cancel_delivered_at pending_cancel_expires_at"),
)
"""A row whose ``request`` is null is a pending cancel: a cancel request stored before its run."""


def of_run(table: Table, key: RunKey) -> ColumnElement[bool]:
    """Return the condition that a row of a table is, or belongs to, a run."""
    return and_(table.c.tenant_id == key.tenant, table.c.run_id == key.run_id)


calls = Table(
    "calls",
    metadata,
    *_of_run(),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    *_columns(Text, "status request_hash", nullable=False),
    *_columns(Text, "call_key outcome"),
    *_columns(JSONB, "charge node", nullable=False),
    *_columns(JSON, "value"),
    *_columns(JSON, "request"),
)
"""``request`` is for reading a trace; whatever executes runs leaves it out."""

JOURNAL_COLUMNS = [column for column in calls.c if column.name != "request"]

snapshots = Table("snapshots", metadata, *_of_run(), Column("snapshot", JSON, nullable=False))
"""The ExecutionGraph of each finished run; that of a run at work is rebuilt from its calls."""

events = Table(
    "events",
    metadata,
    *_of_run(),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("ts", INSTANT, nullable=False),
    Column("type", Text, nullable=False),
    *_columns(Text, "step_id node_id"),
    Column("data", JSONB, nullable=False),
    Column("once_key", Text),
)

workers = Table(
    "workers",
    metadata,
    Column("worker_id", Text, primary_key=True),
    Column("beat_at", INSTANT, nullable=False),
)

definitions = Table(
    "definitions",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("kind", Text, primary_key=True),
    Column("name", Text(collation="C"), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("description", Text),
    Column("definition", JSON),
    Column("uses", JSONB, nullable=False),
    Column("sha256", Text, nullable=False),
    Column("size_bytes", Integer, nullable=False),
    Column("created_at", INSTANT, nullable=False),
)
"""The row of a deleted version stays, without its definition, so that its number is not reused."""

threads = Table(
    "threads",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("thread_id", Text, primary_key=True),
    *_columns(Text, "kind request_hash", nullable=False),
    *_columns(JSON, "definition inputs tools", nullable=False),
    *_columns(Text, "title"),
    Column("metadata", JSONB, nullable=False),
    Column("created_at", INSTANT, nullable=False),
)

messages = Table(
    "messages",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("thread_id", Text, primary_key=True),
    Column("message_id", Text, primary_key=True),
    Column("seq", BigInteger, Identity(always=True), nullable=False),
    *_columns(Text, "role request_hash", nullable=False),
    *_columns(Text, "parent_id content run_id"),
    Column("ends", JSONB, nullable=False),
    Column("created_at", INSTANT, nullable=False),
)
"""An assistant's message has a run, and no content of its own."""

artifacts = Table(
    "artifacts",
    metadata,
    *_of_run(),
    Column("name", Text(collation="C"), primary_key=True),
    *_columns(Text, "slot media_type sha256", nullable=False),
    Column("size_bytes", Integer, nullable=False),
    Column("data", LargeBinary, nullable=False),
    Column("created_at", INSTANT, nullable=False),
)
