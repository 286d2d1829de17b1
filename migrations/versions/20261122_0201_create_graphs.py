"""Create the table of registered graphs, whose versions never change.

Revision: 20261122_0201
Revises: 20261122_0200
"""

from alembic import op

revision = "20261122_0201"
down_revision = "20261122_0200"
branch_labels = None
depends_on = None

# In lax mode a path looks into arrays by itself, and a comparison of different types is neither
# true nor false: hence the types.
SAID = (
    '@.data.type() == "object" && @.data.channel.type() == "string"'
    ' && (@.data.channel == "flow" || @.data.channel == "link")'
)
NESTED = '$.** ? (@.type == "subgraph" || @.type == "map").data.graph'

GRAPHS = f"""
CREATE TABLE graphs (
    tenant_id text NOT NULL,
    name text COLLATE "C" NOT NULL,
    version integer NOT NULL,
    description text,
    definition json,
    uses jsonb NOT NULL DEFAULT '[]',
    sha256 text NOT NULL,
    size_bytes integer NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    deleted_at timestamptz,
    PRIMARY KEY (tenant_id, name, version),
    CONSTRAINT graphs_name_fits_a_path CHECK (name ~ '^[A-Za-z0-9._-]{{1,64}}$'),
    CONSTRAINT graphs_version_counts_from_one CHECK (version > 0),
    CONSTRAINT graphs_row_outlives CHECK ((definition IS NULL) = (deleted_at IS NOT NULL)),
    CONSTRAINT graphs_edges_say_their_channel CHECK (
        NOT jsonb_path_exists(CAST(definition AS jsonb), '$.edges[*] ? (!({SAID}))')
        AND NOT jsonb_path_exists(
            CAST(definition AS jsonb), '{NESTED}.edges[*] ? (!({SAID}))'
        )
    )
)
"""

GUARD = """
CREATE FUNCTION caseworker_guard_graph() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF OLD.definition IS NULL OR NEW.definition IS NOT NULL
        OR (NEW.tenant_id, NEW.name, NEW.version, NEW.sha256, NEW.created_at)
        IS DISTINCT FROM (OLD.tenant_id, OLD.name, OLD.version, OLD.sha256, OLD.created_at) THEN
        RAISE EXCEPTION 'version % of graph % may be deleted, not changed', OLD.version, OLD.name
            USING ERRCODE = 'check_violation', CONSTRAINT = 'graphs_versions_never_change';
    END IF;
    RETURN NEW;
END $$
"""

TRIGGER = """
CREATE TRIGGER graphs_guard BEFORE UPDATE ON graphs
FOR EACH ROW EXECUTE FUNCTION caseworker_guard_graph()
"""


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for statement in (GRAPHS, GUARD, TRIGGER):
        op.execute(statement)


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DROP TABLE graphs")
    op.execute("DROP FUNCTION caseworker_guard_graph")
