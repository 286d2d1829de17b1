"""Keep the results of calls as they were written: jsonb loses the order of their keys.

A prompt that shows a result must be the same after a takeover, or its call counts as another one.
The table is rewritten under an exclusive lock.

Revision: 20261122_1600
Revises: 20261122_1510
"""

from alembic import op

revision = "20261122_1600"
down_revision = "20261122_1510"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Change the type of the column."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE calls ALTER COLUMN value TYPE json USING value::json")


def downgrade() -> None:
    """Change it back."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE calls ALTER COLUMN value TYPE jsonb USING value::jsonb")
