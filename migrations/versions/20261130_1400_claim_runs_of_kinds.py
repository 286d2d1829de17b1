"""Let a worker claim only runs of the kinds that it executes.

A kind may come with a package that some workers do not have. The functions get a parameter for the
kinds that a worker executes, whose default claims all of them. A claim removes a waiting tenant
only if the tenant has no run of any kind to start, so other workers still find its runs.

The functions by which earlier releases claim runs have other parameters and stay.

Revision: 20261130_1400
Revises: 20261130_1350
"""

from alembic import op

revision = "20261130_1400"
down_revision = "20261130_1350"
branch_labels = None
depends_on = None

BEFORE = "caseworker_claim(text, integer, text, text, text[], boolean, boolean)"
AFTER = "caseworker_claim(text, integer, text, text, text[], boolean, boolean, text[])"

REPLACE = """
DO $do$ BEGIN EXECUTE (
    SELECT replace(replace(replace(
        text, $x${}$x$, $y${}$y$), $x${}$x$, $y${}$y$), $x${}$x$, $y${}$y$)
    FROM pg_get_functiondef('{}'::regprocedure) AS function(text)
); END $do$
"""
"""Defines a function with the text of another one, in which three parts are replaced."""

CHANGES = (
    ("suspects boolean)", "suspects boolean, kinds text[] DEFAULT NULL::text[])"),
    (
        "AND (reserves OR r.reserved",
        "AND (kinds IS NULL OR r.kind = ANY(kinds)) AND (reserves OR r.reserved",
    ),
    ("busy := '{}';\n    now_at", "busy := '{}';\n    kinds := NULL;\n    now_at"),
)

CLAIM_SUSPECT = """
CREATE FUNCTION caseworker_claim_suspect(worker text, usual_max_running integer{parameter})
RETURNS SETOF runs LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended('suspects', 3));
    UPDATE deaths SET suspect = false FROM runs WHERE suspect AND finished_at IS NOT NULL
        AND runs.tenant_id = deaths.tenant_id AND runs.run_id = deaths.run_id;
    IF (SELECT count(*) FROM deaths JOIN runs USING (tenant_id, run_id)
            WHERE suspect AND status = 'running') < 2 THEN
        RETURN QUERY SELECT * FROM caseworker_claim(
            worker, usual_max_running, NULL, NULL, '{{}}', true, true{argument});
    END IF;
END $$
"""


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DROP FUNCTION caseworker_claim_suspect(text, integer)")
    op.execute(REPLACE.format(*(text for pair in CHANGES for text in pair), BEFORE))
    op.execute(f"DROP FUNCTION {BEFORE}")
    op.execute(CLAIM_SUSPECT.format(parameter=", kinds text[] DEFAULT NULL", argument=", kinds"))


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DROP FUNCTION caseworker_claim_suspect(text, integer, text[])")
    op.execute(REPLACE.format(*(text for pair in CHANGES for text in reversed(pair)), AFTER))
    op.execute(f"DROP FUNCTION {AFTER}")
    op.execute(CLAIM_SUSPECT.format(parameter="", argument=""))
