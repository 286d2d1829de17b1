"""Index the queued runs that were stopped, so that any process finds and ends them.

The index is built concurrently, without blocking writes. An interrupted upgrade is repeated from
the start; an index that was not completed is replaced.

Revision: 20261129_1300
Revises: 20261129_1200
"""

from alembic import op

revision = "20261129_1300"
down_revision = "20261129_1200"
branch_labels = None
depends_on = None

INDEX = """CREATE INDEX CONCURRENTLY IF NOT EXISTS runs_stopped ON runs (queued_at)
    WHERE status = 'queued' AND cancel_requested_at IS NOT NULL AND started_at IS NOT NULL"""


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    with op.get_context().autocommit_block():
        # A concurrent build blocks no one while it waits for older transactions, however long.
        op.execute("SET lock_timeout = 0")
        op.execute("DROP INDEX CONCURRENTLY IF EXISTS runs_stopped")
        op.execute(INDEX)
        op.execute("RESET lock_timeout")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DROP INDEX runs_stopped")
