"""Record administrative acts.

Revision: 20261127_1500
Revises: 20261127_1300
"""

from alembic import op

revision = "20261127_1500"
down_revision = "20261127_1300"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(
        """CREATE TABLE audit (
            tenant_id text NOT NULL,
            entry_id bigint GENERATED ALWAYS AS IDENTITY,
            at timestamptz NOT NULL DEFAULT clock_timestamp(),
            action text NOT NULL,
            target text NOT NULL,
            actor text NOT NULL,
            actor_tenant text NOT NULL,
            actor_key_id text,
            request_id text,
            PRIMARY KEY (tenant_id, entry_id)
        )"""
    )
    op.execute("CREATE INDEX audit_of_all ON audit (entry_id)")
    op.execute("SELECT caseworker_keep_tenants_apart()")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DROP TABLE audit")
