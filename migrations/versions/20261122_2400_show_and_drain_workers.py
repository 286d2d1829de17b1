"""Say of each worker where it runs and since when, and whether it is being drained.

The previous release inserts rows without them.

Revision: 20261122_2400
Revises: 20261122_2200
"""

from alembic import op

revision = "20261122_2400"
down_revision = "20261122_2200"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(
        """ALTER TABLE workers ADD COLUMN host text, ADD COLUMN pid integer,
            ADD COLUMN started_at timestamptz NOT NULL DEFAULT now(),
            ADD COLUMN drain_requested_at timestamptz"""
    )


def downgrade() -> None:
    """Drop the columns."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(
        """ALTER TABLE workers DROP COLUMN host, DROP COLUMN pid, DROP COLUMN started_at,
            DROP COLUMN drain_requested_at"""
    )
