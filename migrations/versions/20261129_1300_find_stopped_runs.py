"""Index the queued runs that were stopped, so that any process finds and ends them.

Writes to ``runs`` are blocked while the index is built: about one second per million runs.

Revision: 20261129_1300
Revises: 20261129_1200
"""

from alembic import op

revision = "20261129_1300"
down_revision = "20261129_1200"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(
        """CREATE INDEX runs_stopped ON runs (queued_at)
           WHERE status = 'queued' AND cancel_requested_at IS NOT NULL
             AND started_at IS NOT NULL"""
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DROP INDEX runs_stopped")
