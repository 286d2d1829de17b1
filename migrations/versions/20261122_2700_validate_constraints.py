"""Validate the constraint on runs that wait, in a transaction of its own.

Runs can be read and written meanwhile.

Revision: 20261122_2700
Revises: 20261122_2600
"""

from alembic import op

revision = "20261122_2700"
down_revision = "20261122_2600"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Look at all runs once; none has waited in the release before."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE runs VALIDATE CONSTRAINT runs_waiting_has_no_worker")


def downgrade() -> None:
    """Let the constraint be as it was made: for new rows only."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE runs DROP CONSTRAINT runs_waiting_has_no_worker")
    op.execute(
        """ALTER TABLE runs ADD CONSTRAINT runs_waiting_has_no_worker
           CHECK (status IS DISTINCT FROM 'waiting' OR worker_id IS NULL) NOT VALID"""
    )
