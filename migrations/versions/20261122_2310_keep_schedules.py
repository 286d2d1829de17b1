"""Keep schedules.

Revision: 20261122_2310
Revises: 20261122_2300
"""

from alembic import op

revision = "20261122_2310"
down_revision = "20261122_2300"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(
        """CREATE TABLE schedules (
            tenant_id text NOT NULL,
            name text COLLATE "C" NOT NULL CHECK (name ~ '^[A-Za-z0-9._-]{1,64}$'),
            schedule_id uuid NOT NULL DEFAULT gen_random_uuid(),
            cron text NOT NULL,
            timezone text NOT NULL,
            catch_up text NOT NULL CHECK (catch_up IN ('skip', 'one', 'all')),
            max_catch_up integer NOT NULL,
            overlap text NOT NULL CHECK (overlap IN ('allow', 'skip', 'cancel_running')),
            paused boolean NOT NULL,
            sent json NOT NULL,
            request jsonb NOT NULL,
            request_hash text NOT NULL,
            metadata jsonb NOT NULL,
            webhook jsonb,
            next_at timestamptz,
            last_at timestamptz,
            last_run_id text,
            skipped bigint NOT NULL DEFAULT 0,
            last_error text,
            created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
            updated_at timestamptz NOT NULL DEFAULT clock_timestamp(),
            PRIMARY KEY (tenant_id, name),
            CONSTRAINT schedules_fire_unless_paused CHECK (paused = (next_at IS NULL))
        )"""
    )
    op.execute("CREATE INDEX schedules_due ON schedules (next_at) WHERE next_at IS NOT NULL")
    op.execute("SELECT caseworker_keep_tenants_apart()")


def downgrade() -> None:
    """Drop the table."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DROP TABLE schedules")
