"""Index the runs of each agent that did not complete, for lists by agent and status.

The index is built concurrently, without blocking writes. An interrupted upgrade is repeated from
the start; an index that was not completed is replaced. Runs that complete are never in it.

Revision: 20261130_1360
Revises: 20261130_1330
"""

from alembic import op

revision = "20261130_1360"
down_revision = "20261130_1330"
branch_labels = None
depends_on = None

INDEX = """CREATE INDEX CONCURRENTLY IF NOT EXISTS runs_by_agent_not_completed ON runs (
    tenant_id,
    (coalesce(request #>> '{graph_ref,name}', request #>> '{chat,agent,name}',
        request #>> '{graph,steps,0,data,external,name}')),
    (coalesce(status, '')), created_at DESC, run_id DESC
) WHERE request IS NOT NULL
    AND (kind IN ('agent', 'external') OR request #>> '{chat,agent,name}' IS NOT NULL)
    AND coalesce(status, '') IN ('failed', 'halted', 'cancelled')"""

DROP = "DROP INDEX CONCURRENTLY IF EXISTS runs_by_agent_not_completed"


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    with op.get_context().autocommit_block():
        # A concurrent build blocks no one while it waits for older transactions, however long.
        op.execute("SET lock_timeout = 0")
        op.execute(DROP)
        op.execute(INDEX)
        op.execute("RESET lock_timeout")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    with op.get_context().autocommit_block():
        op.execute("SET lock_timeout = 0")
        op.execute(DROP)
        op.execute("RESET lock_timeout")
