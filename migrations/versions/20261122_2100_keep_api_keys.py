"""Keep API keys.

A key is looked up by its id, which is random and says nothing of its tenant.

Revision: 20261122_2100
Revises: 20261122_2001
"""

from alembic import op

revision = "20261122_2100"
down_revision = "20261122_2001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(
        """CREATE TABLE api_keys (
            key_id text PRIMARY KEY,
            tenant_id text NOT NULL,
            name text NOT NULL,
            scopes text[] NOT NULL
                CHECK (scopes <@ ARRAY['read', 'run', 'admin'] AND cardinality(scopes) > 0),
            sha256 bytea NOT NULL CHECK (octet_length(sha256) = 32),
            created_at timestamptz NOT NULL,
            created_by text NOT NULL,
            expires_at timestamptz,
            revoked_at timestamptz,
            rotated_to text
        )"""
    )
    op.execute("CREATE INDEX api_keys_by_age ON api_keys (tenant_id, created_at DESC, key_id DESC)")


def downgrade() -> None:
    """Drop the table."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DROP TABLE api_keys")
