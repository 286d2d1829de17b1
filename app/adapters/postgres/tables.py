"""The columns that queries are built from; the migrations make constraints and indexes."""

from sqlalchemy import (
    JSON,
    Column,
    ColumnElement,
    DateTime,
    Double,
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
    return (
        Column("tenant_id", Text, primary_key=True),
        Column("run_id", Text, primary_key=True),
    )


runs = Table(
    "runs",
    metadata,
    *_of_run(),
    Column("kind", Text),
    Column("status", Text),
    Column("request", JSONB),
    Column("request_hash", Text),
    Column("idempotency_key", Text),
    Column("metadata", JSONB),
    Column("fence", Integer, nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("worker_id", Text),
    Column("created_at", INSTANT, nullable=False),
    Column("queued_at", INSTANT),
    Column("claimed_at", INSTANT),
    Column("started_at", INSTANT),
    Column("finished_at", INSTANT),
    Column("active_seconds", Double, nullable=False),
    Column("cancel_requested_at", INSTANT),
    Column("cancel_requested_by", Text),
    Column("cancel_reason", Text),
    Column("cancel_delivered_at", INSTANT),
    Column("pending_cancel_expires_at", INSTANT),
    Column("finish_reason", Text),
    Column("result", JSONB),
    Column("usage", JSONB),
    Column("stop", JSONB),
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
    Column("status", Text, nullable=False),
    Column("call_key", Text),
    Column("request_hash", Text, nullable=False),
    Column("charge", JSONB, nullable=False),
    Column("outcome", Text),
    Column("value", JSONB),
    Column("node", JSONB, nullable=False),
)

snapshots = Table("snapshots", metadata, *_of_run(), Column("snapshot", JSON, nullable=False))
"""The ExecutionGraph of each finished run; that of a run at work is rebuilt from its calls."""

events = Table(
    "events",
    metadata,
    *_of_run(),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("ts", INSTANT, nullable=False),
    Column("type", Text, nullable=False),
    Column("step_id", Text),
    Column("node_id", Text),
    Column("data", JSONB, nullable=False),
)

workers = Table(
    "workers",
    metadata,
    Column("worker_id", Text, primary_key=True),
    Column("beat_at", INSTANT, nullable=False),
)

graphs = Table(
    "graphs",
    metadata,
    Column("tenant_id", Text, primary_key=True),
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

artifacts = Table(
    "artifacts",
    metadata,
    *_of_run(),
    Column("name", Text(collation="C"), primary_key=True),
    Column("slot", Text, nullable=False),
    Column("media_type", Text, nullable=False),
    Column("size_bytes", Integer, nullable=False),
    Column("sha256", Text, nullable=False),
    Column("data", LargeBinary, nullable=False),
    Column("created_at", INSTANT, nullable=False),
)
