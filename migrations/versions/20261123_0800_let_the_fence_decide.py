"""Drop the foreign keys of calls and events: each is written together with the lock on its run.

A statement that writes them joins the runs that it has locked, so none can be written for a run
that is not there; the keys only made the database look again, for every row. What they did when a
run is erased, a trigger does. Runs can be read and written meanwhile.

Revision: 20261123_0800
Revises: 20261122_2700
"""

from alembic import op

revision = "20261123_0800"
down_revision = "20261122_2700"
branch_labels = None
depends_on = None

TABLES = ("calls", "events")

FUNCTION = """
CREATE FUNCTION caseworker_erase_with_runs() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM calls USING erased
    WHERE calls.tenant_id = erased.tenant_id AND calls.run_id = erased.run_id;
    DELETE FROM events USING erased
    WHERE events.tenant_id = erased.tenant_id AND events.run_id = erased.run_id;
    RETURN NULL;
END
$$
"""

TRIGGER = """
CREATE TRIGGER runs_take_what_they_stored AFTER DELETE ON runs
REFERENCING OLD TABLE AS erased FOR EACH STATEMENT EXECUTE FUNCTION caseworker_erase_with_runs()
"""


def upgrade() -> None:
    """The trigger comes first: between the two a row is erased twice, and never not at all."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(FUNCTION)
    op.execute(TRIGGER)
    for table in TABLES:
        op.execute(f"ALTER TABLE {table} DROP CONSTRAINT {table}_tenant_id_run_id_fkey")


def downgrade() -> None:
    """The keys look at all rows once."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    for table in TABLES:
        op.execute(
            f"""ALTER TABLE {table} ADD CONSTRAINT {table}_tenant_id_run_id_fkey
                FOREIGN KEY (tenant_id, run_id) REFERENCES runs (tenant_id, run_id)
                ON DELETE CASCADE NOT VALID"""
        )
        op.execute(f"ALTER TABLE {table} VALIDATE CONSTRAINT {table}_tenant_id_run_id_fkey")
    op.execute("DROP TRIGGER runs_take_what_they_stored ON runs")
    op.execute("DROP FUNCTION caseworker_erase_with_runs")
