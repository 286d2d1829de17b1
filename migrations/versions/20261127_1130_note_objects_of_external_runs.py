"""Store which objects at a provider the replies to external runs have named.

Revision: 20261127_1130
Revises: 20261127_1100
"""

from alembic import op

revision = "20261127_1130"
down_revision = "20261127_1100"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(
        """CREATE TABLE external_objects (
            tenant_id text NOT NULL,
            run_id text NOT NULL,
            object_id text NOT NULL,
            PRIMARY KEY (tenant_id, run_id, object_id)
        )"""
    )
    op.execute("CREATE INDEX external_objects_id ON external_objects (object_id)")
    op.execute("SELECT caseworker_keep_tenants_apart()")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DROP TABLE external_objects")
