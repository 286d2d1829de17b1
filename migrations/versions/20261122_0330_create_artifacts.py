"""Create the table of the files that runs make.

Revision: 20261122_0330
Revises: 20261122_0201
"""

from alembic import op

revision = "20261122_0330"
down_revision = "20261122_0201"
branch_labels = None
depends_on = None

ARTIFACTS = """
CREATE TABLE artifacts (
    tenant_id text NOT NULL,
    run_id text NOT NULL,
    name text COLLATE "C" NOT NULL,
    slot text NOT NULL,
    media_type text NOT NULL,
    size_bytes integer NOT NULL,
    sha256 text NOT NULL,
    data bytea NOT NULL,
    created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (tenant_id, run_id, name),
    FOREIGN KEY (tenant_id, run_id) REFERENCES runs (tenant_id, run_id) ON DELETE CASCADE,
    CONSTRAINT artifacts_one_a_slot UNIQUE (tenant_id, run_id, slot),
    CONSTRAINT artifacts_name_fits_a_path CHECK (name ~ '^[a-z0-9][a-z0-9._-]{0,99}$'),
    CONSTRAINT artifacts_whole CHECK (size_bytes = octet_length(data)),
    CONSTRAINT artifacts_digest_in_hex CHECK (sha256 ~ '^[0-9a-f]{64}$')
)
"""

# Pictures do not get smaller, and of what is not compressed a piece can be read by itself.
AS_THEY_ARE = "ALTER TABLE artifacts ALTER COLUMN data SET STORAGE EXTERNAL"


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for statement in (ARTIFACTS, AS_THEY_ARE):
        op.execute(statement)


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DROP TABLE artifacts")
