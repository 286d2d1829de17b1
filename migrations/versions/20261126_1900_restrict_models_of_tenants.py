"""Add the allowed models to the quota of a tenant.

Revision: 20261126_1900
Revises: 20261126_1800
"""

from alembic import op

revision = "20261126_1900"
down_revision = "20261126_1800"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE quotas ADD COLUMN models text[]")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE quotas DROP COLUMN models")
