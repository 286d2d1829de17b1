"""Index runs by the agent that they run, external runs included.

Writes to ``runs`` are blocked while the index is built: about one second per million runs.

Revision: 20261127_1600
Revises: 20261127_1500
"""

from alembic import op

revision = "20261127_1600"
down_revision = "20261127_1500"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(
        """CREATE INDEX runs_by_agent_name ON runs
           (tenant_id, (coalesce(request #>> '{graph_ref,name}', request #>> '{chat,agent,name}',
               request #>> '{graph,steps,0,data,external,name}')),
            created_at DESC, run_id DESC)
           WHERE request IS NOT NULL AND (kind IN ('agent', 'external')
               OR request #>> '{chat,agent,name}' IS NOT NULL)"""
    )
    op.execute("DROP INDEX runs_by_named_agent")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(
        """CREATE INDEX runs_by_named_agent ON runs
           (tenant_id, (coalesce(request #>> '{graph_ref,name}', request #>> '{chat,agent,name}')),
            created_at DESC, run_id DESC)
           WHERE request IS NOT NULL
             AND (kind = 'agent' OR request #>> '{chat,agent,name}' IS NOT NULL)"""
    )
    op.execute("DROP INDEX runs_by_agent_name")
