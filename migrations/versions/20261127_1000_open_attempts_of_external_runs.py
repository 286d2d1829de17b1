"""Store the attempts of external runs, each with the hash of its key.

Revision: 20261127_1000
Revises: 20261126_1900
"""

from alembic import op

revision = "20261127_1000"
down_revision = "20261126_1900"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(
        """CREATE TABLE external_attempts (
            tenant_id text NOT NULL,
            run_id text NOT NULL,
            attempt integer NOT NULL,
            sha256 bytea NOT NULL,
            created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
            used_at timestamptz,
            PRIMARY KEY (tenant_id, run_id, attempt)
        )"""
    )
    op.execute("CREATE INDEX external_attempts_sha256 ON external_attempts (sha256)")
    op.execute("SELECT caseworker_keep_tenants_apart()")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DROP TABLE external_attempts")
