"""Index the runs of each agent that did not complete, and the pending cancels by their expiry.

Lists by agent and status read the first index; runs that complete are never in it. A sweep of
retention reads the second. Both are built concurrently, without blocking writes. An interrupted
upgrade is repeated from the start; an index that was not completed is replaced.

Revision: 20261130_1350
Revises: 20261130_1340
"""

from collections.abc import Mapping

from alembic import op

revision = "20261130_1350"
down_revision = "20261130_1340"
branch_labels = None
depends_on = None

INDEXES: Mapping[str, str] = {
    "runs_by_agent_not_completed": """runs (
        tenant_id,
        (coalesce(request #>> '{graph_ref,name}', request #>> '{chat,agent,name}',
            request #>> '{graph,steps,0,data,external,name}')),
        (coalesce(status, '')), created_at DESC, run_id DESC
    ) WHERE request IS NOT NULL
        AND (kind IN ('agent', 'external') OR request #>> '{chat,agent,name}' IS NOT NULL)
        AND coalesce(status, '') IN ('failed', 'halted', 'cancelled')""",
    "runs_unused": """runs ((greatest(coalesce(pending_cancel_expires_at, created_at),
        CASE WHEN fence > 0 THEN (created_at AT TIME ZONE 'UTC' + interval '1 day')
            AT TIME ZONE 'UTC' END))) WHERE request IS NULL""",
}


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    with op.get_context().autocommit_block():
        # A concurrent build blocks no one while it waits for older transactions, however long.
        op.execute("SET lock_timeout = 0")
        for name, definition in INDEXES.items():
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
            op.execute(f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {name} ON {definition}")
        op.execute("RESET lock_timeout")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    with op.get_context().autocommit_block():
        op.execute("SET lock_timeout = 0")
        for name in INDEXES:
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
        op.execute("RESET lock_timeout")
