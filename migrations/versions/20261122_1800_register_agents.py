"""Register agents beside graphs: one table of definitions, each of a kind.

The view ``graphs`` is what it was for processes of the release before.

Revision: 20261122_1800
Revises: 20261122_1700
"""

from alembic import op

revision = "20261122_1800"
down_revision = "20261122_1700"
branch_labels = None
depends_on = None

GUARD = """
CREATE OR REPLACE FUNCTION caseworker_guard_graph() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.definition IS NULL OR NEW.definition IS NOT NULL
        OR ({new}) IS DISTINCT FROM ({old}) THEN
        RAISE EXCEPTION 'version % of {what} % may be deleted, not changed', OLD.version, OLD.name
            USING ERRCODE = 'check_violation', CONSTRAINT = 'graphs_versions_never_change';
    END IF;
    RETURN NEW;
END $$
"""
COLUMNS = "tenant_id name version sha256 created_at"


def _guard(what: str, columns: str) -> str:
    new, old = (", ".join(f"{row}.{name}" for name in columns.split()) for row in ("NEW", "OLD"))
    return GUARD.format(what=what, new=new, old=old)


def upgrade() -> None:
    """Give definitions a kind."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("ALTER TABLE graphs RENAME TO definitions")
    op.execute("ALTER TABLE definitions ADD COLUMN kind text NOT NULL DEFAULT 'graph'")
    op.execute("ALTER TABLE definitions DROP CONSTRAINT graphs_pkey")
    op.execute(
        "ALTER TABLE definitions ADD CONSTRAINT definitions_pkey"
        " PRIMARY KEY (tenant_id, kind, name, version)"
    )
    op.execute(
        "ALTER TABLE definitions ADD CONSTRAINT definitions_kind_is_known"
        " CHECK (kind IN ('graph', 'agent'))"
    )
    op.execute(_guard("definition", f"{COLUMNS} kind"))
    op.execute(
        """CREATE VIEW graphs AS
        SELECT tenant_id, name, version, description, definition, uses, sha256, size_bytes,
            created_at
        FROM definitions WHERE kind = 'graph'"""
    )


def downgrade() -> None:
    """Take the kind away, and with it the agents."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DROP VIEW graphs")
    op.execute("DELETE FROM definitions WHERE kind <> 'graph'")
    op.execute(_guard("graph", COLUMNS))
    op.execute("ALTER TABLE definitions DROP CONSTRAINT definitions_kind_is_known")
    op.execute("ALTER TABLE definitions DROP CONSTRAINT definitions_pkey")
    op.execute("ALTER TABLE definitions DROP COLUMN kind")
    op.execute(
        "ALTER TABLE definitions ADD CONSTRAINT graphs_pkey PRIMARY KEY (tenant_id, name, version)"
    )
    op.execute("ALTER TABLE definitions RENAME TO graphs")
