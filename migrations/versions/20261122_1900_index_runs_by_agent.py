"""Index runs by what they execute and by their metadata, so that filtered lists read no others.

No index holds anything of a case without metadata, which most runs are. Writes to ``runs`` wait
while they are built: about a second for a million runs.

Revision: 20261122_1900
Revises: 20261122_1800
"""

from alembic import op

revision = "20261122_1900"
down_revision = "20261122_1800"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(
        """CREATE INDEX runs_by_kind ON runs (tenant_id, kind, created_at DESC, run_id DESC)
           WHERE request IS NOT NULL AND kind <> 'case'"""
    )
    op.execute(
        """CREATE INDEX runs_by_agent ON runs
           (tenant_id, (request #>> '{graph_ref,name}'), created_at DESC, run_id DESC)
           WHERE request IS NOT NULL AND kind = 'agent'"""
    )
    op.execute(
        """CREATE INDEX runs_by_metadata ON runs USING gin (metadata jsonb_path_ops)
           WHERE request IS NOT NULL AND metadata <> '{}'"""
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DROP INDEX runs_by_metadata")
    op.execute("DROP INDEX runs_by_agent")
    op.execute("DROP INDEX runs_by_kind")
