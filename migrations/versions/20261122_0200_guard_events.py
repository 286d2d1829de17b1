"""Guard the events: one start of a step, one end of each of its executions, one end of a run.

The indexes are made under a lock that lets nobody write events meanwhile. They are partial, and
until now nothing but late results was ever stored there, so each takes one short look at a small
table.

Revision: 20261122_0200
Revises: 20261121_2301
"""

from alembic import op

revision = "20261122_0200"
down_revision = "20261121_2301"
branch_labels = None
depends_on = None

INDEXES = {
    "events_one_start": """
        CREATE UNIQUE INDEX events_one_start ON events (tenant_id, run_id, step_id)
        WHERE type = 'step.started'
    """,
    "events_one_end": """
        CREATE UNIQUE INDEX events_one_end ON events (tenant_id, run_id, node_id)
        WHERE type IN ('step.completed', 'step.error', 'step.cancelled')
    """,
    "events_one_run_end": """
        CREATE UNIQUE INDEX events_one_run_end ON events (tenant_id, run_id)
        WHERE type IN ('run.completed', 'run.failed', 'run.halted', 'run.cancelled')
    """,
}


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for statement in INDEXES.values():
        op.execute(statement)


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for name in INDEXES:
        op.execute(f"DROP INDEX {name}")
