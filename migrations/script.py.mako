"""${message}.

Revision: ${up_revision}
Revises: ${down_revision | comma,n}
Made: ${create_date}
"""

from alembic import op
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    # After CREATE TABLE: op.execute("SELECT caseworker_keep_tenants_apart()")
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    ${downgrades if downgrades else "pass"}
