"""Keep webhooks: what a run notifies of its end, the deliveries, and the secrets that sign them.

Revision: 20261122_2300
Revises: 20261122_2410
"""

from alembic import op

revision = "20261122_2300"
down_revision = "20261122_2410"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables and the column, which is null of all runs there are."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE runs ADD COLUMN webhook jsonb")
    op.execute(
        """CREATE TABLE webhook_deliveries (
            tenant_id text NOT NULL,
            delivery_id text NOT NULL DEFAULT gen_random_uuid()::text,
            run_id text NOT NULL,
            type text NOT NULL,
            url text NOT NULL,
            status text NOT NULL DEFAULT 'pending'
                CHECK (status IN ('pending', 'delivered', 'dead')),
            attempts integer NOT NULL DEFAULT 0,
            created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
            due_at timestamptz DEFAULT clock_timestamp(),
            last_attempt_at timestamptz,
            last_status_code integer,
            last_error text,
            delivered_at timestamptz,
            PRIMARY KEY (tenant_id, delivery_id),
            CONSTRAINT webhook_deliveries_one_an_end UNIQUE (tenant_id, run_id, type),
            CONSTRAINT webhook_deliveries_pending_is_due CHECK (
                (status = 'pending') = (due_at IS NOT NULL)
            ),
            FOREIGN KEY (tenant_id, run_id) REFERENCES runs (tenant_id, run_id) ON DELETE CASCADE
        )"""
    )
    op.execute(
        """CREATE INDEX webhook_deliveries_newest
           ON webhook_deliveries (tenant_id, created_at DESC, delivery_id DESC)"""
    )
    op.execute(
        "CREATE INDEX webhook_deliveries_due ON webhook_deliveries (due_at)"
        " WHERE status = 'pending'"
    )
    op.execute(
        """CREATE INDEX webhook_deliveries_dead
           ON webhook_deliveries (tenant_id, created_at DESC, delivery_id DESC)
           WHERE status = 'dead'"""
    )
    op.execute(
        """CREATE TABLE webhook_secrets (
            tenant_id text NOT NULL,
            version integer NOT NULL,
            secret text NOT NULL,
            created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
            expires_at timestamptz,
            PRIMARY KEY (tenant_id, version)
        )"""
    )
    op.execute("SELECT caseworker_keep_tenants_apart()")


def downgrade() -> None:
    """Drop the tables and the column."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DROP TABLE webhook_secrets")
    op.execute("DROP TABLE webhook_deliveries")
    op.execute("ALTER TABLE runs DROP COLUMN webhook")
