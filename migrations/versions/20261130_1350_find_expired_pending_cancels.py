"""Find the pending cancels that have expired by an index, and not all of them.

It is built concurrently, without blocking writes, and an interrupted upgrade is repeated from the
start.

Revision: 20261130_1350
Revises: 20261130_1340
"""

from alembic import op

revision = "20261130_1350"
down_revision = "20261130_1340"
branch_labels = None
depends_on = None

UNUSED = """CREATE INDEX CONCURRENTLY runs_unused ON runs (
    (greatest(coalesce(pending_cancel_expires_at, created_at),
        CASE WHEN fence > 0 THEN (created_at AT TIME ZONE 'UTC' + interval '1 day')
            AT TIME ZONE 'UTC' END))
) WHERE request IS NULL"""


def upgrade() -> None:
    with op.get_context().autocommit_block():
        # A concurrent build blocks no one while it waits for older transactions, however long.
        op.execute("SET lock_timeout = 0")
        op.execute("DROP INDEX CONCURRENTLY IF EXISTS runs_unused")
        op.execute(UNUSED)
        op.execute("RESET lock_timeout")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DROP INDEX runs_unused")
