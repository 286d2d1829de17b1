"""Keep the costs of waiting runs like those of ended ones, and index the definitions with uses.

The calls of a waiting run do not change, so ``GET /spend`` need not read them. A trigger stores its
costs when it begins to wait, and deletes them when it stops waiting. Costs of runs that already
wait are stored in the background; see revision 20261130_1310.

Writes to ``runs`` are blocked for an instant. The index is built concurrently, first, so that
an interrupted upgrade is repeated from the start.

Revision: 20261130_1800
Revises: 20261130_1400
"""

from alembic import op

revision = "20261130_1800"
down_revision = "20261130_1400"
branch_labels = None
depends_on = None

CHANGE = """
DO $do$ BEGIN EXECUTE (
    SELECT replace(text, $b${before}$b$, $a${after}$a$)
    FROM pg_get_functiondef('{function}'::regprocedure) AS function(text)
); END $do$
"""
KEEP, FILL = "caseworker_keep_costs()", "caseworker_fill_costs(integer)"
INDEX = "definitions_with_uses"

ENDED = "OLD.finished_at IS NOT NULL THEN"
ENDED_OR_WAITED = "(OLD.finished_at IS NOT NULL OR OLD.status = 'waiting') THEN"

STORED = "INSERT INTO run_costs"
STORED_IF_WAITING = """IF NEW.finished_at IS NULL AND NEW.status <> 'waiting' THEN
        RETURN NULL;
    END IF;
    INSERT INTO run_costs"""

CHANGES = (
    (KEEP, ENDED, ENDED_OR_WAITED),
    (KEEP, STORED, STORED_IF_WAITING),
    *(
        (
            FILL,
            f"AND {run}finished_at IS NOT NULL",
            f"AND ({run}finished_at IS NOT NULL OR {run}status = 'waiting')",
        )
        for run in ("", "run.")
    ),
)
"""What changes in functions: the function, the text before, and the text after."""

KEEP_WAITING = """
CREATE CONSTRAINT TRIGGER runs_keep_costs_waiting
AFTER UPDATE OF status, created_at, started_at, finished_at, usage, stop ON runs
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
WHEN (NEW.finished_at IS NULL AND (OLD.status = 'waiting' OR NEW.status = 'waiting'))
EXECUTE FUNCTION caseworker_keep_costs()
"""

REMAINING = """
INSERT INTO cost_backfill (tenant_id, before)
SELECT DISTINCT tenant_id, 'infinity'::timestamptz FROM runs WHERE status = 'waiting'
ON CONFLICT (tenant_id) DO UPDATE SET before = 'infinity'
"""

FORGET = """
DELETE FROM run_costs USING runs WHERE runs.status = 'waiting'
    AND run_costs.tenant_id = runs.tenant_id AND run_costs.run_id = runs.run_id
"""


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    with op.get_context().autocommit_block():
        # A concurrent build blocks no one while it waits for older transactions, however long.
        op.execute("SET lock_timeout = 0")
        op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {INDEX}")
        op.execute(
            f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {INDEX} "
            "ON definitions (tenant_id, name, version) WHERE uses <> '[]'"
        )
        op.execute("RESET lock_timeout")
    op.execute("SET LOCAL lock_timeout = '5s'")
    for function, before, after in CHANGES:
        op.execute(CHANGE.format(function=function, before=before, after=after))
    op.execute(KEEP_WAITING)
    op.execute(REMAINING)


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DROP TRIGGER runs_keep_costs_waiting ON runs")
    for function, before, after in reversed(CHANGES):
        op.execute(CHANGE.format(function=function, before=after, after=before))
    op.execute(FORGET)
    op.execute(f"DROP INDEX {INDEX}")
