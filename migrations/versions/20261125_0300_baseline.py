"""Create the schema of revision 20261125_0300 in one step.

The statements are in ``migrations/baseline``, each function in its own file. A database that
already is at this revision was migrated by the revisions that this one replaces, and has the same
schema.

Constraints and triggers reject what no code may do: leave a terminal status, lower a fence,
withdraw a cancel request, end a call or a run twice, or change a registered graph. Row-level
security separates tenants. It needs a database user that may create the role ``caseworker_tenant``.
Without such a user the service still works, and docs/security.md says how to add the role.

Revision: 20261125_0300
Revises:
"""

from pathlib import Path

from alembic import op
from procrastinate.schema import SchemaManager

revision = "20261125_0300"
down_revision = None
branch_labels = None
depends_on = None

BASELINE = Path(__file__).parents[1] / "baseline"
TABLES = (
    *("messages", "threads", "artifacts", "snapshots", "events", "calls", "approvals"),
    *("webhook_deliveries", "runs", "definitions", "schedules", "webhook_secrets", "api_keys"),
    *("quota_days", "quota_rates", "quotas", "retention"),
    *("provider_limits", "provider_turns", "workers"),
)

QUEUE_SETTINGS = """ALTER TABLE procrastinate_jobs SET (
    autovacuum_vacuum_scale_factor = 0.01, autovacuum_vacuum_threshold = 1000)"""

DROP_QUEUE = """
DO $$ DECLARE thing record; BEGIN
    FOR thing IN SELECT tablename FROM pg_tables
        WHERE schemaname = current_schema() AND tablename LIKE 'procrastinate\\_%' LOOP
        EXECUTE format('DROP TABLE IF EXISTS %I CASCADE', thing.tablename);
    END LOOP;
    FOR thing IN SELECT p.oid::regprocedure AS signature FROM pg_proc p
        JOIN pg_namespace n ON n.oid = p.pronamespace
        WHERE n.nspname = current_schema() AND p.proname LIKE 'procrastinate\\_%' LOOP
        EXECUTE format('DROP FUNCTION IF EXISTS %s CASCADE', thing.signature);
    END LOOP;
    FOR thing IN SELECT t.typname FROM pg_type t
        JOIN pg_namespace n ON n.oid = t.typnamespace
        WHERE n.nspname = current_schema() AND t.typname LIKE 'procrastinate\\_%' LOOP
        EXECUTE format('DROP TYPE IF EXISTS %I CASCADE', thing.typname);
    END LOOP;
END $$
"""

DROP_FUNCTIONS = """
DO $$ DECLARE thing record; BEGIN
    FOR thing IN SELECT p.oid::regprocedure AS signature FROM pg_proc p
        JOIN pg_namespace n ON n.oid = p.pronamespace
        WHERE n.nspname = current_schema() AND p.proname LIKE 'caseworker\\_%' LOOP
        EXECUTE format('DROP FUNCTION %s CASCADE', thing.signature);
    END LOOP;
END $$
"""


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    functions = sorted((BASELINE / "functions").iterdir())
    for file in (BASELINE / "tables.sql", *functions):
        _run(file.read_text(encoding="utf-8"))
    for name in ("views.sql", "triggers.sql"):
        _run((BASELINE / name).read_text(encoding="utf-8"))
    _run(SchemaManager.get_schema())
    op.execute(QUEUE_SETTINGS)
    op.execute("SELECT caseworker_keep_tenants_apart()")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DROP VIEW journal, graphs")
    _run(DROP_FUNCTIONS)
    for table in TABLES:
        op.execute(f"DROP TABLE {table}")
    _run(DROP_QUEUE)


def _run(script: str) -> None:
    """Run a script on the driver's connection: it has % signs and several statements."""
    driver = op.get_bind().connection.cursor()
    try:
        driver.execute(script)
    finally:
        driver.close()
