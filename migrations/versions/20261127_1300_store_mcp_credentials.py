"""Store the credentials of tenants for MCP servers, encrypted.

Revision: 20261127_1300
Revises: 20261127_1130
"""

from alembic import op

revision = "20261127_1300"
down_revision = "20261127_1130"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(
        """CREATE TABLE mcp_credentials (
            tenant_id text NOT NULL,
            server text NOT NULL,
            sealed text NOT NULL,
            updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
            PRIMARY KEY (tenant_id, server)
        )"""
    )
    op.execute("SELECT caseworker_keep_tenants_apart()")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DROP TABLE mcp_credentials")
