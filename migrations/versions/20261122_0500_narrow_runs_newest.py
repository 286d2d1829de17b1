"""Let the index behind lists of runs hold runs only, without the wishes that wait for a run.

So nothing but a list can use it. While a table is small the planner believes that an index on
``tenant_id`` and ``run_id`` with something in between is as good as the primary key, and the plans
of prepared statements and of foreign keys stay when the table has grown: every look at one run
would read the index entries of all runs of its tenant.

Revision: 20261122_0500
Revises: 20261122_0330
"""

from alembic import op

revision = "20261122_0500"
down_revision = "20261122_0330"
branch_labels = None
depends_on = None

WIDE = "CREATE INDEX runs_newest ON runs (tenant_id, created_at DESC, run_id DESC)"
NARROW = f"{WIDE} WHERE request IS NOT NULL"


def upgrade() -> None:
    _make_again(NARROW)


def downgrade() -> None:
    _make_again(WIDE)


def _make_again(index: str) -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DROP INDEX runs_newest")
    op.execute(index)
