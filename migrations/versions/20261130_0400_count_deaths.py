"""Count the deaths of processes against the runs whose code caused them.

Runs that executed code when their process died are suspects. The previous releases claim them like
other runs. This release executes them one at a time in a process of their own, and its other
processes claim them by a function that leaves them out.

Revision: 20261130_0400
Revises: 20261130_0000
"""

from alembic import op

revision = "20261130_0400"
down_revision = "20261130_0000"
branch_labels = None
depends_on = None

DEATHS = """
CREATE TABLE deaths (
    tenant_id text NOT NULL,
    run_id text NOT NULL,
    count integer NOT NULL,
    calls json NOT NULL,
    cause text NOT NULL,
    suspect boolean NOT NULL,
    PRIMARY KEY (tenant_id, run_id),
    FOREIGN KEY (tenant_id, run_id) REFERENCES runs (tenant_id, run_id) ON DELETE CASCADE
)
"""

CLAIM = """
DO $do$ BEGIN EXECUTE (
    SELECT replace(replace(text, $b$reserves boolean$b$, $a$reserves boolean, suspects boolean$a$),
        $b$r.queued_at <= now_at$b$,
        $a$r.queued_at <= now_at AND (suspects IS NULL OR suspects = EXISTS (
            SELECT FROM deaths d WHERE d.tenant_id = r.tenant_id AND d.run_id = r.run_id
                AND d.suspect))$a$)
    FROM pg_get_functiondef(
        'caseworker_claim(text, integer, text, text, text[], boolean)'::regprocedure
    ) AS function(text)
); END $do$
"""
"""Defines a function that claims only suspects, all other runs, or any run."""

CLAIM_SUSPECT = """
CREATE FUNCTION caseworker_claim_suspect(worker text, usual_max_running integer)
RETURNS SETOF runs LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('suspects', 3));
    UPDATE deaths SET suspect = false FROM runs WHERE suspect AND finished_at IS NOT NULL
        AND runs.tenant_id = deaths.tenant_id AND runs.run_id = deaths.run_id;
    IF (SELECT count(*) FROM deaths JOIN runs USING (tenant_id, run_id)
            WHERE suspect AND status = 'running') < 2 THEN
        RETURN QUERY SELECT * FROM caseworker_claim(
            worker, usual_max_running, NULL, NULL, '{}', true, true);
    END IF;
END $$
"""
"""Claims a suspect unless two are being executed. A run that has ended is no suspect.

The lock is not that of a run or a tenant, and is held until the claim is committed."""


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(DEATHS)
    op.execute(CLAIM)
    op.execute(CLAIM_SUSPECT)
    op.execute("SELECT caseworker_keep_tenants_apart()")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DROP FUNCTION caseworker_claim_suspect(text, integer)")
    op.execute(
        "DROP FUNCTION caseworker_claim(text, integer, text, text, text[], boolean, boolean)"
    )
    op.execute("DROP TABLE deaths")
