"""Allow the scope ``approve`` for API keys.

Revision: 20261126_1700
Revises: 20261126_1600
"""

from alembic import op

revision = "20261126_1700"
down_revision = "20261126_1600"
branch_labels = None
depends_on = None

NAME = "api_keys_scopes_check"


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(f"ALTER TABLE api_keys DROP CONSTRAINT {NAME}")
    op.execute(
        f"""ALTER TABLE api_keys ADD CONSTRAINT {NAME}
        CHECK (scopes <@ ARRAY['read', 'run', 'approve', 'admin'] AND cardinality(scopes) > 0)
        NOT VALID"""
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DELETE FROM api_keys WHERE 'approve' = ANY(scopes)")
    op.execute(f"ALTER TABLE api_keys DROP CONSTRAINT {NAME}")
    op.execute(
        f"""ALTER TABLE api_keys ADD CONSTRAINT {NAME}
        CHECK (scopes <@ ARRAY['read', 'run', 'admin'] AND cardinality(scopes) > 0)"""
    )
