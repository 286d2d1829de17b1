"""Let a claim find runs that are queued after it has started.

Each queued run causes one claim. Before this revision, a claim considered only runs that were
queued before it started. If concurrent claims took all of these, it returned none, although a newer
run was queued whose own claim had taken an older run. That run then waited for recovery.

Revision: 20261130_0000
Revises: 20261129_1300
"""

from alembic import op

revision = "20261130_0000"
down_revision = "20261129_1300"
branch_labels = None
depends_on = None

REDEFINE = """
DO $do$ BEGIN EXECUTE (
    SELECT replace(replace(text, $b${}$b$, $a${}$a$), $b${}$b$, $a${}$a$)
    FROM pg_get_functiondef('caseworker_claim({})'::regprocedure) AS function(text)
); END $do$
"""
"""Redefines a function that claims runs, with two changes of its text."""

PARAMETERS = (
    "text, integer, text, text",
    "text, integer, text, text, text[]",
    "text, integer, text, text, text[], boolean",
)
"""Parameters of the functions by which this and earlier releases claim runs."""

NONE_FOUND = """
        IF NOT FOUND THEN
            RETURN;
        END IF;
"""
NONE_QUEUED_SINCE = """
        IF NOT FOUND THEN
            looked_at := now_at;
            now_at := clock_timestamp();
            IF NOT EXISTS (SELECT FROM runs WHERE status = 'queued'
                    AND queued_at > looked_at AND queued_at <= now_at) THEN
                RETURN;
            END IF;
            CONTINUE;
        END IF;
"""
VARIABLE = "now_at timestamptz := clock_timestamp();"
VARIABLES = f"looked_at timestamptz;\n    {VARIABLE}"


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for types in PARAMETERS:
        op.execute(REDEFINE.format(NONE_FOUND, NONE_QUEUED_SINCE, VARIABLE, VARIABLES, types))


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for types in PARAMETERS:
        op.execute(REDEFINE.format(NONE_QUEUED_SINCE, NONE_FOUND, VARIABLES, VARIABLE, types))
