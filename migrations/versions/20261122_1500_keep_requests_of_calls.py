"""Keep what calls asked beside what they got, for whoever reads a trace.

The column has no default and may be empty, so that adding it rewrites nothing.

Revision: 20261122_1500
Revises: 20261122_1200
"""

from alembic import op

revision = "20261122_1500"
down_revision = "20261122_1200"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE calls ADD COLUMN request json")


def downgrade() -> None:
    """Drop it, and with it what calls asked."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE calls DROP COLUMN request")
