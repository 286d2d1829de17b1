"""Keep the metadata of a run with its costs, so that sums by metadata read no runs.

Rows of runs that ended before this revision get it in the background. An index finds them; it is
empty afterwards. Another index finds the pending cancels that have expired, and not all of them.
Both are built concurrently, without blocking writes, and an interrupted upgrade is repeated from
the start.

Revision: 20261130_1350
Revises: 20261130_1330
"""

from collections.abc import Mapping

from alembic import op

revision = "20261130_1350"
down_revision = "20261130_1330"
branch_labels = None
depends_on = None

INDEXES: Mapping[str, str] = {
    "run_costs_without_metadata": "run_costs (tenant_id, created_at) WHERE metadata IS NULL",
    "runs_unused": """runs ((greatest(coalesce(pending_cancel_expires_at, created_at),
        CASE WHEN fence > 0 THEN (created_at AT TIME ZONE 'UTC' + interval '1 day')
            AT TIME ZONE 'UTC' END))) WHERE request IS NULL""",
}

REDEFINE = """
DO $do$ BEGIN EXECUTE (
    SELECT replace(text, $b${before}$b$, $a${after}$a$)
    FROM pg_get_functiondef('{function}'::regprocedure) AS function(text)
); END $do$
"""

LACKING = """IF NOT FOUND THEN
        WITH lacking AS MATERIALIZED (
            SELECT ctid, tenant_id, run_id FROM run_costs WHERE metadata IS NULL
            LIMIT most FOR UPDATE SKIP LOCKED
        )
        UPDATE run_costs c SET metadata = coalesce(r.metadata, '{}')
        FROM lacking LEFT JOIN runs r USING (tenant_id, run_id) WHERE c.ctid = lacking.ctid;
        RETURN FOUND;"""

COLUMN = {"cost_usd_estimated)\n": "cost_usd_estimated, metadata)\n"}
VALUE = "cost.cost_usd_estimated"
CHANGES: Mapping[str, Mapping[str, str]] = {
    "caseworker_keep_costs()": {**COLUMN, f"{VALUE}\n": f"{VALUE}, NEW.metadata\n"},
    "caseworker_fill_costs(integer)": {
        **COLUMN,
        f"{VALUE}\n": f"{VALUE}, run.metadata\n",
        "IF NOT FOUND THEN\n        RETURN false;": LACKING,
    },
}
"""Parts of functions that are replaced; repeating it has no effect."""


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE run_costs ADD COLUMN IF NOT EXISTS metadata jsonb")
    for function, changes in CHANGES.items():
        for before, after in changes.items():
            op.execute(REDEFINE.format(function=function, before=before, after=after))
    with op.get_context().autocommit_block():
        # A concurrent build blocks no one while it waits for older transactions, however long.
        op.execute("SET lock_timeout = 0")
        for name, definition in INDEXES.items():
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
            op.execute(f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {name} ON {definition}")
        op.execute("RESET lock_timeout")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for function, changes in CHANGES.items():
        for before, after in changes.items():
            op.execute(REDEFINE.format(function=function, before=after, after=before))
    op.execute("ALTER TABLE run_costs DROP COLUMN metadata")
    op.execute("DROP INDEX runs_unused")
