"""Count the losses of a run in a row between which it did not get on.

A run that goes on is given as many losses as it was begun again before; those that have ended keep
zero, which nobody reads.

Revision: 20261122_2000
Revises: 20261122_1910
"""

from alembic import op

revision = "20261122_2000"
down_revision = "20261122_1910"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns; their defaults are constant, so the table is not rewritten."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(
        """ALTER TABLE runs
        ADD COLUMN losses integer NOT NULL DEFAULT 0,
        ADD COLUMN ended_calls integer NOT NULL DEFAULT 0"""
    )
    op.execute(
        """UPDATE runs SET losses = greatest(0, attempts - (status <> 'queued')::integer)
        WHERE status IN ('queued', 'running', 'waiting') AND attempts > 1"""
    )


def downgrade() -> None:
    """Remove them."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE runs DROP COLUMN losses, DROP COLUMN ended_calls")
