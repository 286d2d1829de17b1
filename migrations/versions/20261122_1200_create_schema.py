"""Create the schema: runs and what hangs on them, graphs, artifacts, workers, the job queue.

Constraints and triggers refuse what no code may do: leave a terminal status, lower a fence, take a
cancel request back, end a call or a run twice, change a registered graph.

Revision: 20261122_1200
Revises:
"""

from alembic import op
from procrastinate.schema import SchemaManager

revision = "20261122_1200"
down_revision = None
branch_labels = None
depends_on = None

RUNS = """
CREATE TABLE runs (
    tenant_id text NOT NULL,
    run_id text NOT NULL,
    kind text,
    status text,
    request jsonb,
    request_hash text,
    idempotency_key text,
    metadata jsonb,
    fence integer NOT NULL DEFAULT 0,
    attempts integer NOT NULL DEFAULT 0,
    worker_id text,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    queued_at timestamptz,
    claimed_at timestamptz,
    started_at timestamptz,
    finished_at timestamptz,
    active_seconds double precision NOT NULL DEFAULT 0,
    cancel_requested_at timestamptz,
    cancel_requested_by text,
    cancel_reason text,
    cancel_delivered_at timestamptz,
    pending_cancel_expires_at timestamptz,
    finish_reason text,
    result jsonb,
    usage jsonb,
    stop jsonb,
    PRIMARY KEY (tenant_id, run_id),
    CONSTRAINT runs_pending_cancel_or_run CHECK ((request IS NULL) = (status IS NULL)),
    CONSTRAINT runs_status_known CHECK (
        status IN ('queued', 'running', 'waiting')
        OR status IN ('completed', 'failed', 'halted', 'cancelled')
    ),
    CONSTRAINT runs_end_has_time CHECK (
        coalesce(status IN ('completed', 'failed', 'halted', 'cancelled'), false)
        = (finished_at IS NOT NULL)
    ),
    CONSTRAINT runs_running_has_worker CHECK (
        status IS DISTINCT FROM 'running' OR worker_id IS NOT NULL
    )
)
"""

# The index behind lists of runs holds no pending cancels, so that nothing but a list can use it.
# While a table is small the planner believes that an index on tenant_id and run_id with something
# in between is as good as the primary key, and the plans of prepared statements and of foreign keys
# stay when the table has grown: every look at one run would read the index entries of all runs.
RUN_INDEXES = (
    """CREATE INDEX runs_newest ON runs (tenant_id, created_at DESC, run_id DESC)
       WHERE request IS NOT NULL""",
    """CREATE UNIQUE INDEX runs_idempotency_key ON runs (tenant_id, idempotency_key)
       WHERE idempotency_key IS NOT NULL""",
    "CREATE INDEX runs_of_worker ON runs (worker_id) WHERE status IN ('running', 'waiting')",
    "CREATE INDEX runs_queued ON runs (queued_at) WHERE status = 'queued'",
    """CREATE INDEX runs_pending_cancels ON runs (tenant_id, pending_cancel_expires_at)
       WHERE request IS NULL""",
)

CALLS = """
CREATE TABLE calls (
    tenant_id text NOT NULL,
    run_id text NOT NULL,
    seq integer NOT NULL,
    status text NOT NULL,
    call_key text,
    request_hash text NOT NULL DEFAULT '',
    charge jsonb NOT NULL DEFAULT '{}',
    outcome text,
    value jsonb,
    node jsonb NOT NULL,
    PRIMARY KEY (tenant_id, run_id, seq),
    FOREIGN KEY (tenant_id, run_id) REFERENCES runs (tenant_id, run_id) ON DELETE CASCADE,
    CONSTRAINT calls_status_known CHECK (
        status IN ('created', 'running', 'success', 'fail', 'halt')
    )
)
"""

SNAPSHOTS = """
CREATE TABLE snapshots (
    tenant_id text NOT NULL,
    run_id text NOT NULL,
    snapshot json NOT NULL,
    PRIMARY KEY (tenant_id, run_id),
    FOREIGN KEY (tenant_id, run_id) REFERENCES runs (tenant_id, run_id) ON DELETE CASCADE
)
"""

EVENTS = """
CREATE TABLE events (
    tenant_id text NOT NULL,
    run_id text NOT NULL,
    seq integer NOT NULL,
    ts timestamptz NOT NULL DEFAULT clock_timestamp(),
    type text NOT NULL,
    step_id text,
    node_id text,
    data jsonb NOT NULL DEFAULT '{}',
    PRIMARY KEY (tenant_id, run_id, seq),
    FOREIGN KEY (tenant_id, run_id) REFERENCES runs (tenant_id, run_id) ON DELETE CASCADE
)
"""

# One start of a step, one end of each of its executions, one end of a run.
EVENT_INDEXES = (
    """CREATE UNIQUE INDEX events_one_start ON events (tenant_id, run_id, step_id)
       WHERE type = 'step.started'""",
    """CREATE UNIQUE INDEX events_one_end ON events (tenant_id, run_id, node_id)
       WHERE type IN ('step.completed', 'step.error', 'step.cancelled')""",
    """CREATE UNIQUE INDEX events_one_run_end ON events (tenant_id, run_id)
       WHERE type IN ('run.completed', 'run.failed', 'run.halted', 'run.cancelled')""",
)

WORKERS = """
CREATE TABLE workers (
    worker_id text PRIMARY KEY,
    beat_at timestamptz NOT NULL DEFAULT clock_timestamp()
)
"""

# In lax mode a path looks into arrays by itself, and a comparison of different types is neither
# true nor false: hence the types.
SAYS_CHANNEL = (
    '@.data.type() == "object" && @.data.channel.type() == "string"'
    ' && (@.data.channel == "flow" || @.data.channel == "link")'
)
NESTED = '$.** ? (@.type == "subgraph" || @.type == "map").data.graph'

GRAPHS = f"""
CREATE TABLE graphs (
    tenant_id text NOT NULL,
    name text COLLATE "C" NOT NULL,
    version integer NOT NULL,
    description text,
    definition json,
    uses jsonb NOT NULL DEFAULT '[]',
    sha256 text NOT NULL,
    size_bytes integer NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, name, version),
    CONSTRAINT graphs_name_fits_a_path CHECK (name ~ '^[A-Za-z0-9._-]{{1,64}}$'),
    CONSTRAINT graphs_version_counts_from_one CHECK (version > 0),
    CONSTRAINT graphs_edges_say_their_channel CHECK (
        NOT jsonb_path_exists(CAST(definition AS jsonb), '$.edges[*] ? (!({SAYS_CHANNEL}))')
        AND NOT jsonb_path_exists(
            CAST(definition AS jsonb), '{NESTED}.edges[*] ? (!({SAYS_CHANNEL}))'
        )
    )
)
"""

ARTIFACTS = """
CREATE TABLE artifacts (
    tenant_id text NOT NULL,
    run_id text NOT NULL,
    name text COLLATE "C" NOT NULL,
    slot text NOT NULL,
    media_type text NOT NULL,
    size_bytes integer NOT NULL,
    sha256 text NOT NULL,
    data bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, run_id, name),
    FOREIGN KEY (tenant_id, run_id) REFERENCES runs (tenant_id, run_id) ON DELETE CASCADE,
    CONSTRAINT artifacts_one_a_slot UNIQUE (tenant_id, run_id, slot),
    CONSTRAINT artifacts_name_fits_a_path CHECK (name ~ '^[a-z0-9][a-z0-9._-]{0,99}$'),
    CONSTRAINT artifacts_whole CHECK (size_bytes = octet_length(data)),
    CONSTRAINT artifacts_digest_in_hex CHECK (sha256 ~ '^[0-9a-f]{64}$')
)
"""

# Pictures do not get smaller, and of what is not compressed a piece can be read by itself.
ARTIFACTS_AS_THEY_ARE = "ALTER TABLE artifacts ALTER COLUMN data SET STORAGE EXTERNAL"

# A CASE that meets a NULL is NULL, which IF takes for false: hence IS NOT TRUE.
GUARD_RUNS = """
CREATE FUNCTION caseworker_guard_run() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    begins boolean := NEW.status = 'running' AND OLD.status IS DISTINCT FROM 'running'
        AND OLD.status IS DISTINCT FROM 'waiting';
BEGIN
    IF NEW.status IS DISTINCT FROM OLD.status AND (CASE coalesce(OLD.status, 'pending cancel')
        WHEN 'pending cancel' THEN NEW.status IN ('queued', 'running', 'cancelled')
        WHEN 'queued' THEN NEW.status IN ('running', 'cancelled', 'halted')
        WHEN 'running' THEN NEW.status <> 'running'
        WHEN 'waiting' THEN NEW.status <> 'waiting'
        ELSE false
    END) IS NOT TRUE THEN
        RAISE EXCEPTION 'run % may not go from % to %', OLD.run_id, OLD.status, NEW.status
            USING ERRCODE = 'check_violation', CONSTRAINT = 'runs_lawful_transition';
    END IF;
    IF NEW.fence < OLD.fence OR (begins AND NEW.fence = OLD.fence) THEN
        RAISE EXCEPTION 'the fence of run % must rise with every claim', OLD.run_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'runs_fence_rises';
    END IF;
    IF OLD.request IS NOT NULL AND OLD.cancel_requested_at IS NOT NULL
        AND NEW.cancel_requested_at IS DISTINCT FROM OLD.cancel_requested_at THEN
        RAISE EXCEPTION 'the cancel request of run % may not be taken back', OLD.run_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'runs_cancel_request_stays';
    END IF;
    RETURN NEW;
END $$
"""

GUARD_CALLS = """
CREATE FUNCTION caseworker_guard_call() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'call % of run % has ended as %', OLD.seq, OLD.run_id, OLD.status
        USING ERRCODE = 'check_violation', CONSTRAINT = 'calls_terminal_is_final';
END $$
"""

GUARD_GRAPHS = """
CREATE FUNCTION caseworker_guard_graph() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.definition IS NULL OR NEW.definition IS NOT NULL
        OR (NEW.tenant_id, NEW.name, NEW.version, NEW.sha256, NEW.created_at)
        IS DISTINCT FROM (OLD.tenant_id, OLD.name, OLD.version, OLD.sha256, OLD.created_at) THEN
        RAISE EXCEPTION 'version % of graph % may be deleted, not changed', OLD.version, OLD.name
            USING ERRCODE = 'check_violation', CONSTRAINT = 'graphs_versions_never_change';
    END IF;
    RETURN NEW;
END $$
"""

TRIGGERS = (
    """CREATE TRIGGER runs_guard BEFORE UPDATE OF status, fence, cancel_requested_at ON runs
       FOR EACH ROW EXECUTE FUNCTION caseworker_guard_run()""",
    """CREATE TRIGGER calls_guard BEFORE UPDATE OF status ON calls FOR EACH ROW
       WHEN (OLD.status IN ('success', 'fail', 'halt') AND NEW.status <> OLD.status)
       EXECUTE FUNCTION caseworker_guard_call()""",
    """CREATE TRIGGER graphs_guard BEFORE UPDATE ON graphs
       FOR EACH ROW EXECUTE FUNCTION caseworker_guard_graph()""",
)

DROP_QUEUE = """
DO $$ DECLARE thing record; BEGIN
    FOR thing IN SELECT tablename FROM pg_tables
        WHERE schemaname = current_schema() AND tablename LIKE 'procrastinate\\_%' LOOP
        EXECUTE format('DROP TABLE IF EXISTS %I CASCADE', thing.tablename);
    END LOOP;
    FOR thing IN SELECT p.oid::regprocedure AS signature FROM pg_proc p
        JOIN pg_namespace n ON n.oid = p.pronamespace
        WHERE n.nspname = current_schema() AND p.proname LIKE 'procrastinate\\_%' LOOP
        EXECUTE format('DROP FUNCTION IF EXISTS %s CASCADE', thing.signature);
    END LOOP;
    FOR thing IN SELECT t.typname FROM pg_type t
        JOIN pg_namespace n ON n.oid = t.typnamespace
        WHERE n.nspname = current_schema() AND t.typname LIKE 'procrastinate\\_%' LOOP
        EXECUTE format('DROP TYPE IF EXISTS %I CASCADE', thing.typname);
    END LOOP;
END $$
"""

TABLES = (RUNS, CALLS, SNAPSHOTS, EVENTS, WORKERS, GRAPHS, ARTIFACTS, ARTIFACTS_AS_THEY_ARE)
GUARDS = (GUARD_RUNS, GUARD_CALLS, GUARD_GRAPHS, *TRIGGERS)


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for statement in (*TABLES, *RUN_INDEXES, *EVENT_INDEXES, *GUARDS):
        op.execute(statement)
    _run(SchemaManager.get_schema())


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    _run(DROP_QUEUE)
    for table in ("artifacts", "graphs", "workers", "events", "snapshots", "calls", "runs"):
        op.execute(f"DROP TABLE {table}")
    for guarded in ("run", "call", "graph"):
        op.execute(f"DROP FUNCTION caseworker_guard_{guarded}")


def _run(script: str) -> None:
    """Run a script on the driver's own connection: it has % signs and several statements."""
    driver = op.get_bind().connection.cursor()
    try:
        driver.execute(script)
    finally:
        driver.close()
