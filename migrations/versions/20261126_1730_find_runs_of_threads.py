"""Index runs by their thread, and by the agent that answers in the thread.

The indexes contain only runs of threads and of agents. Writes to ``runs`` are blocked while the
indexes are built: about one second per million runs.

Revision: 20261126_1730
Revises: 20261126_1710
"""

from alembic import op

revision = "20261126_1730"
down_revision = "20261126_1710"
branch_labels = None
depends_on = None

BY_AGENT = """CREATE INDEX runs_by_agent ON runs
       (tenant_id, (request #>> '{graph_ref,name}'), created_at DESC, run_id DESC)
       WHERE request IS NOT NULL AND kind = 'agent'"""


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(
        """CREATE INDEX runs_by_named_agent ON runs
           (tenant_id, (coalesce(request #>> '{graph_ref,name}', request #>> '{chat,agent,name}')),
            created_at DESC, run_id DESC)
           WHERE request IS NOT NULL
             AND (kind = 'agent' OR request #>> '{chat,agent,name}' IS NOT NULL)"""
    )
    op.execute(
        """CREATE INDEX runs_by_thread ON runs
           (tenant_id, (request #>> '{chat,thread_id}'), created_at DESC, run_id DESC)
           WHERE request #>> '{chat,thread_id}' IS NOT NULL"""
    )
    op.execute("DROP INDEX runs_by_agent")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(BY_AGENT)
    op.execute("DROP INDEX runs_by_thread")
    op.execute("DROP INDEX runs_by_named_agent")
