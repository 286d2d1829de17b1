"""Keep the keys of events that are stored once over all owners of a run.

Until now only steps that are skipped were known by their type; the keys of those of runs that go
on are filled in.

Revision: 20261122_1700
Revises: 20261122_1600
"""

from alembic import op

revision = "20261122_1700"
down_revision = "20261122_1600"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE events ADD COLUMN once_key text")
    op.execute(
        """UPDATE events SET once_key = step_id || '|' || type FROM runs
        WHERE events.type = 'step.skipped' AND runs.status IN ('queued', 'running', 'waiting')
            AND runs.tenant_id = events.tenant_id AND runs.run_id = events.run_id"""
    )


def downgrade() -> None:
    """Remove it."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE events DROP COLUMN once_key")
