"""Keep approvals, and let a run that waits for one be nobody's.

A run that waits has no worker; the index of a worker's runs holds those at work alone, and another
one those that go on by themselves at some time. A run that goes on is claimed like a queued one.

Writes to ``runs`` wait while two indexes are built, which hold runs that have not ended. A later
revision validates the constraint.

Revision: 20261122_2200
Revises: 20261122_2105
"""

from alembic import op

revision = "20261122_2200"
down_revision = "20261122_2105"
branch_labels = None
depends_on = None

TABLE = """
CREATE TABLE approvals (
    tenant_id text NOT NULL,
    run_id text NOT NULL,
    approval_id text NOT NULL,
    node_id text NOT NULL,
    call_key text NOT NULL,
    subject text NOT NULL,
    message text NOT NULL,
    arguments json NOT NULL,
    schema json,
    requested_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    expires_at timestamptz NOT NULL,
    decision text,
    decided_by text,
    decided_at timestamptz,
    reason text,
    changed_arguments json,
    PRIMARY KEY (tenant_id, run_id, approval_id),
    FOREIGN KEY (tenant_id, run_id) REFERENCES runs (tenant_id, run_id) ON DELETE CASCADE,
    CONSTRAINT approvals_decision_known CHECK (decision IN ('approved', 'refused', 'timed_out')),
    CONSTRAINT approvals_decision_has_time CHECK ((decision IS NULL) = (decided_at IS NULL)),
    CONSTRAINT approvals_person_decides CHECK (
        coalesce(decision IN ('approved', 'refused'), false) = (decided_by IS NOT NULL)
    )
)
"""

GUARD = """
CREATE FUNCTION caseworker_guard_approval() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'approval % of run % is decided', OLD.approval_id, OLD.run_id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'approvals_decided_once';
END $$
"""

TRIGGER = """
CREATE TRIGGER approvals_guard BEFORE UPDATE ON approvals FOR EACH ROW
    WHEN (OLD.decision IS NOT NULL) EXECUTE FUNCTION caseworker_guard_approval()
"""

GUARD_RUNS = """
CREATE OR REPLACE FUNCTION caseworker_guard_run() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    begins boolean := NEW.status = 'running' AND OLD.status IS DISTINCT FROM 'running'{resumes};
BEGIN
    IF NEW.status IS DISTINCT FROM OLD.status AND (CASE coalesce(OLD.status, 'pending cancel')
        WHEN 'pending cancel' THEN NEW.status IN ('queued', 'running', 'cancelled')
        WHEN 'queued' THEN NEW.status IN ('running', 'cancelled', 'halted')
        WHEN 'running' THEN NEW.status <> 'running'
        WHEN 'waiting' THEN NEW.status NOT IN ('waiting'{unlawful})
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


def upgrade() -> None:
    """Make the table, and the indexes and guards that follow."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(TABLE)
    op.execute(
        """CREATE INDEX approvals_open ON approvals
           (tenant_id, requested_at, run_id, approval_id) WHERE decision IS NULL"""
    )
    op.execute(GUARD)
    op.execute(TRIGGER)
    op.execute(GUARD_RUNS.format(resumes="", unlawful=", 'running'"))
    op.execute("DROP INDEX runs_of_worker")
    op.execute("CREATE INDEX runs_of_worker ON runs (worker_id) WHERE status IN ('running')")
    op.execute("CREATE INDEX runs_that_wait ON runs (queued_at) WHERE status = 'waiting'")
    op.execute(
        """ALTER TABLE runs ADD CONSTRAINT runs_waiting_has_no_worker
           CHECK (status IS DISTINCT FROM 'waiting' OR worker_id IS NULL) NOT VALID"""
    )
    op.execute("SELECT caseworker_keep_tenants_apart()")


def downgrade() -> None:
    """Take them back; what waits is queued, and asks again."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE runs DROP CONSTRAINT runs_waiting_has_no_worker")
    op.execute(
        """UPDATE runs SET status = 'queued', queued_at = clock_timestamp()
           WHERE status = 'waiting'"""
    )
    op.execute("DROP INDEX runs_that_wait")
    op.execute("DROP INDEX runs_of_worker")
    op.execute(
        """CREATE INDEX runs_of_worker ON runs (worker_id)
           WHERE status IN ('running', 'waiting')"""
    )
    op.execute(GUARD_RUNS.format(resumes=" AND OLD.status IS DISTINCT FROM 'waiting'", unlawful=""))
    op.execute("DROP TABLE approvals")
    op.execute("DROP FUNCTION caseworker_guard_approval")
