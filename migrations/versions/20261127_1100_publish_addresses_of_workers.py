"""Publish where each worker receives forwarded requests.

Revision: 20261127_1100
Revises: 20261127_1000
"""

from alembic import op

revision = "20261127_1100"
down_revision = "20261127_1000"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE workers ADD COLUMN address jsonb")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE workers DROP COLUMN address")
