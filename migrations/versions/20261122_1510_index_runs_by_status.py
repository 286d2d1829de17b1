"""Index runs by their status, so that a list of those with one status reads no others.

Like the index behind all lists it holds no pending cancels, so that nothing but a list can use it.
Writes to ``runs`` wait while it is built: about a second for a million runs.

Revision: 20261122_1510
Revises: 20261122_1500
"""

from alembic import op

revision = "20261122_1510"
down_revision = "20261122_1500"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(
        """CREATE INDEX runs_by_status ON runs (tenant_id, status, created_at DESC, run_id DESC)
           WHERE request IS NOT NULL"""
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DROP INDEX runs_by_status")
