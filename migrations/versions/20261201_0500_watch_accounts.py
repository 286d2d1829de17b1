"""Count the refused calls of standing keys in their accounts.

The column has a constant default, so no table is rewritten. Writes to the table are blocked for an
instant.

Revision: 20261201_0500
Revises: 20261201_0400
"""

from alembic import op

revision = "20261201_0500"
down_revision = "20261201_0400"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE accounts ADD COLUMN refused bigint NOT NULL DEFAULT 0")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE accounts DROP COLUMN refused")
