"""Let runs be erased and swept: a mark on messages, how long tenants keep what, an index by end.

Hot tables leave room for new versions of their rows, and are vacuumed before their dead rows are a
fifth of them. Writes to ``runs`` wait while the index is built: about a second for a million runs.

Revision: 20261122_2410
Revises: 20261122_2400
"""

from alembic import op

revision = "20261122_2410"
down_revision = "20261122_2400"
branch_labels = None
depends_on = None

RETENTION = """
CREATE TABLE retention (
    tenant_id text NOT NULL,
    record text NOT NULL,
    days integer CHECK (days = -1 OR days > 0),
    swept_until timestamptz,
    PRIMARY KEY (tenant_id, record)
)
"""

OFTEN_VACUUMED = (
    "autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_insert_scale_factor = 0.1"
)
SETTINGS = {
    "runs": f"fillfactor = 90, {OFTEN_VACUUMED}",
    "calls": f"fillfactor = 90, {OFTEN_VACUUMED}",
    "events": OFTEN_VACUUMED,
    "workers": "fillfactor = 50, autovacuum_vacuum_scale_factor = 0, "
    "autovacuum_vacuum_threshold = 500",
    "procrastinate_jobs": "autovacuum_vacuum_scale_factor = 0.01, "
    "autovacuum_vacuum_threshold = 1000",
}


def upgrade() -> None:
    """Add them."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE messages ADD COLUMN run_erased_at timestamptz")
    op.execute(RETENTION)
    op.execute(
        """CREATE INDEX runs_by_end ON runs (tenant_id, finished_at)
           WHERE finished_at IS NOT NULL"""
    )
    for table, settings in SETTINGS.items():
        op.execute(f"ALTER TABLE {table} SET ({settings})")
    op.execute("SELECT caseworker_keep_tenants_apart()")


def downgrade() -> None:
    """Take them away."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    for table, settings in SETTINGS.items():
        names = ", ".join(each.split(" = ")[0] for each in settings.split(", "))
        op.execute(f"ALTER TABLE {table} RESET ({names})")
    op.execute("DROP INDEX runs_by_end")
    op.execute("DROP TABLE retention")
    op.execute("ALTER TABLE messages DROP COLUMN run_erased_at")
