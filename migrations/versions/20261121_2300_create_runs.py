"""Create the tables of runs, and the guards that no code can talk its way around.

Revision: 20261121_2300
Revises:
"""

from alembic import op

revision = "20261121_2300"
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
    intent_expires_at timestamptz,
    finish_reason text,
    result jsonb,
    usage jsonb,
    stop jsonb,
    PRIMARY KEY (tenant_id, run_id),
    CONSTRAINT runs_intent_or_run CHECK ((request IS NULL) = (status IS NULL)),
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

INDEXES = (
    "CREATE INDEX runs_newest ON runs (tenant_id, created_at DESC, run_id DESC)",
    """CREATE UNIQUE INDEX runs_idempotency_key ON runs (tenant_id, idempotency_key)
       WHERE idempotency_key IS NOT NULL""",
    "CREATE INDEX runs_of_worker ON runs (worker_id) WHERE status IN ('running', 'waiting')",
    "CREATE INDEX runs_queued ON runs (queued_at) WHERE status = 'queued'",
    "CREATE INDEX runs_intents ON runs (tenant_id, intent_expires_at) WHERE request IS NULL",
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
    version integer NOT NULL,
    final boolean NOT NULL,
    snapshot json NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, run_id, version),
    FOREIGN KEY (tenant_id, run_id) REFERENCES runs (tenant_id, run_id) ON DELETE CASCADE
)
"""

ONE_FINAL = """
CREATE UNIQUE INDEX snapshots_one_final ON snapshots (tenant_id, run_id) WHERE final
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

WORKERS = """
CREATE TABLE workers (
    worker_id text PRIMARY KEY,
    started_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    beat_at timestamptz NOT NULL DEFAULT clock_timestamp()
)
"""

# A CASE that meets a NULL is NULL, which IF takes for false: hence IS NOT TRUE.
GUARD_RUNS = """
CREATE FUNCTION caseworker_guard_run() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    begins boolean := NEW.status = 'running' AND OLD.status IS DISTINCT FROM 'running'
        AND OLD.status IS DISTINCT FROM 'waiting';
BEGIN
    IF NEW.status IS DISTINCT FROM OLD.status AND (CASE coalesce(OLD.status, 'intent')
        WHEN 'intent' THEN NEW.status IN ('queued', 'running', 'cancelled')
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
        RAISE EXCEPTION 'the wish to stop run % may not be taken back', OLD.run_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'runs_wish_stays';
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

TRIGGERS = (
    """CREATE TRIGGER runs_guard BEFORE UPDATE OF status, fence, cancel_requested_at ON runs
       FOR EACH ROW EXECUTE FUNCTION caseworker_guard_run()""",
    """CREATE TRIGGER calls_guard BEFORE UPDATE OF status ON calls FOR EACH ROW
       WHEN (OLD.status IN ('success', 'fail', 'halt') AND NEW.status <> OLD.status)
       EXECUTE FUNCTION caseworker_guard_call()""",
)


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for statement in (RUNS, *INDEXES, CALLS, SNAPSHOTS, ONE_FINAL, EVENTS, WORKERS):
        op.execute(statement)
    for statement in (GUARD_RUNS, GUARD_CALLS, *TRIGGERS):
        op.execute(statement)


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for table in ("workers", "events", "snapshots", "calls", "runs"):
        op.execute(f"DROP TABLE {table}")
    for function in ("caseworker_guard_run", "caseworker_guard_call"):
        op.execute(f"DROP FUNCTION {function}")
