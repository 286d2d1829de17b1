"""Store how many tokens the reply had that named an object at the provider.

A request that refers to the object reserves them. A null is unknown: the context window counts.

Revision: 20261129_1200
Revises: 20261129_1100
"""

from alembic import op

revision = "20261129_1200"
down_revision = "20261129_1100"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE external_objects ADD COLUMN tokens bigint")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE external_objects DROP COLUMN tokens")
