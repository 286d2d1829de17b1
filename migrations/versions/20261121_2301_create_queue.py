"""Create the job queue's own schema, as its library ships it.

Revision: 20261121_2301
Revises: 20261121_2300
"""

from alembic import op
from procrastinate.schema import SchemaManager

revision = "20261121_2301"
down_revision = "20261121_2300"
branch_labels = None
depends_on = None

DROP = """
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


def upgrade() -> None:
    _run(SchemaManager.get_schema())


def downgrade() -> None:
    _run(DROP)


def _run(script: str) -> None:
    """Run a script on the driver's own connection: it has % signs and several statements."""
    driver = op.get_bind().connection.cursor()
    try:
        driver.execute(script)
    finally:
        driver.close()
