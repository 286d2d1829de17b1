"""Validate the constraint on API key scopes, in a separate transaction.

Keys can be read and written during the validation.

Revision: 20261126_1710
Revises: 20261126_1700
"""

from alembic import op

revision = "20261126_1710"
down_revision = "20261126_1700"
branch_labels = None
depends_on = None

NAME = "api_keys_scopes_check"


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(f"ALTER TABLE api_keys VALIDATE CONSTRAINT {NAME}")


def downgrade() -> None:
    """Restore the constraint to its unvalidated state, which checks only new rows."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(f"ALTER TABLE api_keys DROP CONSTRAINT {NAME}")
    op.execute(
        f"""ALTER TABLE api_keys ADD CONSTRAINT {NAME}
        CHECK (scopes <@ ARRAY['read', 'run', 'approve', 'admin'] AND cardinality(scopes) > 0)
        NOT VALID"""
    )
