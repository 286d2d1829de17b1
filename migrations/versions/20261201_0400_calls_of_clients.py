"""Store calls that the client of a run answers, and who has created the run.

Such a call is a row of ``approvals`` with an author. Its answer is stored as an approval with
changed arguments, or as a refusal. The previous release therefore lists the call among the
approvals. It does not claim the run, because ``runs.reserved_cost_usd`` is 0.

The new columns are null, so no table is rewritten. Writes to both tables are blocked for an
instant.

Revision: 20261201_0400
Revises: 20261130_2200
"""

from alembic import op

revision = "20261201_0400"
down_revision = "20261130_2200"
branch_labels = None
depends_on = None


INDEXES = {
    "runs_waiting_by_creator": """runs (tenant_id, creator)
        WHERE status = 'waiting' AND creator IS NOT NULL""",
    "approvals_of_people": """approvals (tenant_id, requested_at, run_id, approval_id)
        WHERE decision IS NULL AND run_ended IS NOT TRUE AND author IS NULL""",
}
"""The previous release lists approvals by the index ``approvals_open``, which has all authors."""


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE runs ADD COLUMN IF NOT EXISTS creator text")
    op.execute("ALTER TABLE approvals ADD COLUMN IF NOT EXISTS author text")
    with op.get_context().autocommit_block():
        # A concurrent build blocks no one while it waits for older transactions, however long.
        op.execute("SET lock_timeout = 0")
        for name, definition in INDEXES.items():
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
            op.execute(f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {name} ON {definition}")
        op.execute("RESET lock_timeout")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DELETE FROM approvals WHERE author = 'client'")
    for name in INDEXES:
        op.execute(f"DROP INDEX IF EXISTS {name}")
    op.execute("ALTER TABLE approvals DROP COLUMN author")
    op.execute("ALTER TABLE runs DROP COLUMN creator")
