"""The tables, as the migrations make them."""

from sqlalchemy import (
    JSON,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Double,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.dialects.postgresql import JSONB

metadata = MetaData()

TERMINAL = "('completed', 'failed', 'halted', 'cancelled')"


def _instant(name: str, **options: object) -> Column[object]:
    return Column(name, DateTime(timezone=True), **options)  # type: ignore[arg-type]


runs = Table(
    "runs",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("run_id", Text, primary_key=True),
    Column("kind", Text),
    Column("status", Text),
    Column("request", JSONB),
    Column("request_hash", Text),
    Column("idempotency_key", Text),
    Column("metadata", JSONB),
    Column("fence", Integer, nullable=False, server_default=text("0")),
    Column("attempts", Integer, nullable=False, server_default=text("0")),
    Column("worker_id", Text),
    _instant("created_at", nullable=False, server_default=text("clock_timestamp()")),
    _instant("queued_at"),
    _instant("claimed_at"),
    _instant("started_at"),
    _instant("finished_at"),
    Column("active_seconds", Double, nullable=False, server_default=text("0")),
    _instant("cancel_requested_at"),
    Column("cancel_requested_by", Text),
    Column("cancel_reason", Text),
    _instant("cancel_delivered_at"),
    _instant("intent_expires_at"),
    Column("finish_reason", Text),
    Column("result", JSONB),
    Column("usage", JSONB),
    Column("stop", JSONB),
    CheckConstraint("(request IS NULL) = (status IS NULL)", name="runs_intent_or_run"),
    CheckConstraint(
        f"status IN ('queued', 'running', 'waiting') OR status IN {TERMINAL}",
        name="runs_status_known",
    ),
    CheckConstraint(
        f"coalesce(status IN {TERMINAL}, false) = (finished_at IS NOT NULL)",
        name="runs_end_has_time",
    ),
    CheckConstraint(
        "status IS DISTINCT FROM 'running' OR worker_id IS NOT NULL", name="runs_running_has_worker"
    ),
)

Index(
    "runs_newest",
    runs.c.tenant_id,
    runs.c.created_at.desc(),
    runs.c.run_id.desc(),
    postgresql_where=text("request IS NOT NULL"),
)
Index(
    "runs_idempotency_key",
    runs.c.tenant_id,
    runs.c.idempotency_key,
    unique=True,
    postgresql_where=runs.c.idempotency_key.is_not(None),
)
Index(
    "runs_of_worker",
    runs.c.worker_id,
    postgresql_where=text("status IN ('running', 'waiting')"),
)
Index("runs_queued", runs.c.queued_at, postgresql_where=text("status = 'queued'"))
Index(
    "runs_intents",
    runs.c.tenant_id,
    runs.c.intent_expires_at,
    postgresql_where=text("request IS NULL"),
)

calls = Table(
    "calls",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("run_id", Text, primary_key=True),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("status", Text, nullable=False),
    Column("call_key", Text),
    Column("request_hash", Text, nullable=False, server_default=text("''")),
    Column("charge", JSONB, nullable=False, server_default=text("'{}'")),
    Column("outcome", Text),
    Column("value", JSONB),
    Column("node", JSONB, nullable=False),
    ForeignKeyConstraint(
        ["tenant_id", "run_id"], ["runs.tenant_id", "runs.run_id"], ondelete="CASCADE"
    ),
    CheckConstraint(
        "status IN ('created', 'running', 'success', 'fail', 'halt')", name="calls_status_known"
    ),
)

snapshots = Table(
    "snapshots",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("run_id", Text, primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("final", Boolean, nullable=False),
    Column("snapshot", JSON, nullable=False),
    _instant("created_at", nullable=False, server_default=text("clock_timestamp()")),
    ForeignKeyConstraint(
        ["tenant_id", "run_id"], ["runs.tenant_id", "runs.run_id"], ondelete="CASCADE"
    ),
)

Index(
    "snapshots_one_final",
    snapshots.c.tenant_id,
    snapshots.c.run_id,
    unique=True,
    postgresql_where=text("final"),
)

events = Table(
    "events",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("run_id", Text, primary_key=True),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    _instant("ts", nullable=False, server_default=text("clock_timestamp()")),
    Column("type", Text, nullable=False),
    Column("step_id", Text),
    Column("node_id", Text),
    Column("data", JSONB, nullable=False, server_default=text("'{}'")),
    ForeignKeyConstraint(
        ["tenant_id", "run_id"], ["runs.tenant_id", "runs.run_id"], ondelete="CASCADE"
    ),
)

STEP_ENDS = "('step.completed', 'step.error', 'step.cancelled')"
RUN_ENDS = "('run.completed', 'run.failed', 'run.halted', 'run.cancelled')"

Index(
    "events_one_start",
    events.c.tenant_id,
    events.c.run_id,
    events.c.step_id,
    unique=True,
    postgresql_where=text("type = 'step.started'"),
)
Index(
    "events_one_end",
    events.c.tenant_id,
    events.c.run_id,
    events.c.node_id,
    unique=True,
    postgresql_where=text(f"type IN {STEP_ENDS}"),
)
Index(
    "events_one_run_end",
    events.c.tenant_id,
    events.c.run_id,
    unique=True,
    postgresql_where=text(f"type IN {RUN_ENDS}"),
)

workers = Table(
    "workers",
    metadata,
    Column("worker_id", Text, primary_key=True),
    _instant("started_at", nullable=False, server_default=text("clock_timestamp()")),
    _instant("beat_at", nullable=False, server_default=text("clock_timestamp()")),
)

_SAID = (
    '@.data.type() == "object" && @.data.channel.type() == "string"'
    ' && (@.data.channel == "flow" || @.data.channel == "link")'
)
_NESTED = '$.** ? (@.type == "subgraph" || @.type == "map").data.graph'

graphs = Table(
    "graphs",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("name", Text(collation="C"), primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("description", Text),
    Column("definition", JSON),
    Column("uses", JSONB, nullable=False, server_default=text("'[]'")),
    Column("sha256", Text, nullable=False),
    Column("size_bytes", Integer, nullable=False),
    _instant("created_at", nullable=False, server_default=text("clock_timestamp()")),
    _instant("deleted_at"),
    CheckConstraint("name ~ '^[A-Za-z0-9._-]{1,64}$'", name="graphs_name_fits_a_path"),
    CheckConstraint("version > 0", name="graphs_version_counts_from_one"),
    CheckConstraint("(definition IS NULL) = (deleted_at IS NOT NULL)", name="graphs_row_outlives"),
    CheckConstraint(
        "NOT jsonb_path_exists(CAST(definition AS jsonb),"
        f" '$.edges[*] ? (!({_SAID}))')"
        " AND NOT jsonb_path_exists(CAST(definition AS jsonb),"
        f" '{_NESTED}.edges[*] ? (!({_SAID}))')",
        name="graphs_edges_say_their_channel",
    ),
)
"""The row of a deleted version stays, empty, so that its number is not used again."""

artifacts = Table(
    "artifacts",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("run_id", Text, primary_key=True),
    Column("name", Text(collation="C"), primary_key=True),
    Column("slot", Text, nullable=False),
    Column("media_type", Text, nullable=False),
    Column("size_bytes", Integer, nullable=False),
    Column("sha256", Text, nullable=False),
    Column("data", LargeBinary, nullable=False),
    _instant("created_at", nullable=False, server_default=text("clock_timestamp()")),
    ForeignKeyConstraint(
        ["tenant_id", "run_id"], ["runs.tenant_id", "runs.run_id"], ondelete="CASCADE"
    ),
    UniqueConstraint("tenant_id", "run_id", "slot", name="artifacts_one_a_slot"),
    CheckConstraint("name ~ '^[a-z0-9][a-z0-9._-]{0,99}$'", name="artifacts_name_fits_a_path"),
    CheckConstraint("size_bytes = octet_length(data)", name="artifacts_whole"),
    CheckConstraint("sha256 ~ '^[0-9a-f]{64}$'", name="artifacts_digest_in_hex"),
)
"""The bytes are stored as they are, so that a piece can be read without the rest of them."""
