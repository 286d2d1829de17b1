"""The columns of the tables, for building queries; migrations define constraints and indexes."""

from typing import Any

from sqlalchemy import (
    ARRAY,
    JSON,
    BigInteger,
    Boolean,
    Column,
    ColumnElement,
    DateTime,
    Double,
    Identity,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    SmallInteger,
    Table,
    Text,
    Uuid,
    and_,
)
from sqlalchemy.dialects.postgresql import JSONB

from caseworker.runs.run import RunKey

metadata = MetaData()

INSTANT = DateTime(timezone=True)


def _of_run() -> tuple[Column[str], Column[str]]:
    """Return the key columns of the run that a row belongs to."""
    return (Column("tenant_id", Text, primary_key=True), Column("run_id", Text, primary_key=True))


def _columns(kind: Any, names: str, *, nullable: bool = True) -> list[Column[Any]]:
    return [Column(name, kind, nullable=nullable) for name in names.split()]


runs = Table(
    "runs",
    metadata,
    *_of_run(),
    *_columns(Text, "kind status request_hash idempotency_key worker_id finish_reason"),
    *_columns(Text, "cancel_requested_by cancel_reason concurrency_key"),
    *_columns(JSONB, "request metadata result usage stop webhook"),
    *_columns(Integer, "fence attempts losses ended_calls", nullable=False),
    Column("priority", SmallInteger, nullable=False),
    Column("concurrency_limit", Integer),
    Column("reserved_cost_usd", Numeric),
    *_columns(Double, "active_seconds", nullable=False),
    *_columns(INSTANT, "created_at", nullable=False),
    *_columns(INSTANT, "queued_at claimed_at started_at finished_at"),
    *_columns(INSTANT, "cancel_requested_at cancel_delivered_at pending_cancel_expires_at"),
    Column("deadline", INSTANT),
)
"""Runs, and cancel requests that were stored before their run. In a row for the latter, ``request``
is null."""


def of_run(table: Table, key: RunKey) -> ColumnElement[bool]:
    """Return the SQL condition that a row is the row of a run, or belongs to the run."""
    return and_(table.c.tenant_id == key.tenant, table.c.run_id == key.run_id)


def _of_call() -> list[Column[Any]]:
    return [
        *_of_run(),
        Column("seq", Integer, primary_key=True, autoincrement=False),
        *_columns(Text, "status request_hash", nullable=False),
        *_columns(Text, "call_key outcome"),
        *_columns(JSONB, "charge node"),
        *_columns(JSON, "value request"),
    ]


calls = Table("calls", metadata, *_of_call(), Column("brief", JSON))
"""Calls of runs. If ``brief`` is set, it contains charge and node in compact form; see the module
``brief``."""

journal = Table("journal", MetaData(), *_of_call())
"""View for reading calls, with charge and node in full, however they are stored.

``request`` is needed only to read a trace; code that executes runs leaves it out.
"""

JOURNAL_COLUMNS = [column for column in journal.c if column.name != "request"]

snapshots = Table("snapshots", metadata, *_of_run(), Column("snapshot", JSON, nullable=False))
"""ExecutionGraphs of runs that an earlier release finished; no longer read."""

events = Table(
    "events",
    metadata,
    *_of_run(),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("ts", INSTANT, nullable=False),
    Column("type", Text, nullable=False),
    *_columns(Text, "step_id node_id"),
    Column("data", JSONB),
    *_columns(Text, "once_key brief"),
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
"""Versions of graphs and agents. A deleted version keeps its row, without the content, so that its
number is not used again."""

approvals = Table(
    "approvals",
    metadata,
    *_of_run(),
    Column("approval_id", Text, primary_key=True),
    *_columns(Text, "node_id call_key subject message", nullable=False),
    *_columns(JSON, "arguments", nullable=False),
    *_columns(JSON(none_as_null=True), "schema changed_arguments"),
    *_columns(INSTANT, "requested_at expires_at", nullable=False),
    *_columns(Text, "decision decided_by reason"),
    *_columns(INSTANT, "decided_at"),
)

api_keys = Table(
    "api_keys",
    metadata,
    Column("key_id", Text, primary_key=True),
    *_columns(Text, "tenant_id name created_by", nullable=False),
    Column("scopes", ARRAY(Text), nullable=False),
    Column("sha256", LargeBinary, nullable=False),
    Column("created_at", INSTANT, nullable=False),
    *_columns(INSTANT, "expires_at revoked_at"),
    *_columns(Text, "rotated_to"),
)

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
    Column("run_erased_at", INSTANT),
    Column("ends", JSONB, nullable=False),
    Column("created_at", INSTANT, nullable=False),
)
"""Messages of threads. An assistant message refers to a run and has no content of its own."""

retention = Table(
    "retention",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("record", Text, primary_key=True),
    Column("days", Integer),
    Column("swept_until", INSTANT),
)
"""Retention periods of tenants that have their own, and the progress of sweeps.

The row with an empty tenant name holds the time of the last sweep.
"""


webhook_deliveries = Table(
    "webhook_deliveries",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("delivery_id", Text, primary_key=True),
    *_columns(Text, "run_id type url status", nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("created_at", INSTANT, nullable=False),
    *_columns(INSTANT, "due_at last_attempt_at delivered_at"),
    Column("last_status_code", Integer),
    Column("last_error", Text),
)

schedules = Table(
    "schedules",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("name", Text(collation="C"), primary_key=True),
    Column("schedule_id", Uuid, nullable=False),
    *_columns(Text, "cron timezone catch_up overlap request_hash", nullable=False),
    Column("max_catch_up", Integer, nullable=False),
    Column("paused", Boolean, nullable=False),
    Column("sent", JSON, nullable=False),
    *_columns(JSONB, "request metadata", nullable=False),
    Column("webhook", JSONB(none_as_null=True)),
    *_columns(INSTANT, "next_at last_at"),
    *_columns(Text, "last_run_id last_error"),
    Column("skipped", BigInteger, nullable=False),
    *_columns(INSTANT, "created_at updated_at", nullable=False),
)

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

stored_runs = Table(
    "stored_runs", metadata, *_of_run(), Column("bytes", BigInteger, nullable=False)
)
"""Size in bytes stored for each run, without its files. Triggers add up the sizes per tenant in the
table ``stored``."""
