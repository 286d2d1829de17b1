"""Keep threads and their messages.

An assistant's message names its run, which need not be there: the message is stored before it.

Revision: 20261122_1910
Revises: 20261122_1900
"""

from alembic import op

revision = "20261122_1910"
down_revision = "20261122_1900"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(
        """CREATE TABLE threads (
            tenant_id text NOT NULL,
            thread_id text NOT NULL,
            kind text NOT NULL CHECK (kind IN ('graph', 'agent')),
            definition json NOT NULL,
            inputs json NOT NULL,
            tools json NOT NULL,
            title text,
            metadata jsonb NOT NULL,
            request_hash text NOT NULL,
            created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
            PRIMARY KEY (tenant_id, thread_id)
        )"""
    )
    op.execute(
        "CREATE INDEX threads_by_age ON threads (tenant_id, created_at DESC, thread_id DESC)"
    )
    op.execute(
        """CREATE TABLE messages (
            tenant_id text NOT NULL,
            thread_id text NOT NULL,
            message_id text NOT NULL,
            seq bigint GENERATED ALWAYS AS IDENTITY,
            parent_id text,
            role text NOT NULL CHECK (role IN ('user', 'assistant')),
            content text,
            run_id text,
            ends jsonb NOT NULL,
            request_hash text NOT NULL,
            created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
            PRIMARY KEY (tenant_id, thread_id, message_id),
            CONSTRAINT messages_of_a_thread FOREIGN KEY (tenant_id, thread_id)
                REFERENCES threads ON DELETE CASCADE,
            CONSTRAINT messages_follow_one FOREIGN KEY (tenant_id, thread_id, parent_id)
                REFERENCES messages ON DELETE CASCADE,
            CONSTRAINT messages_have_text_or_run CHECK (
                CASE role WHEN 'user' THEN content IS NOT NULL AND run_id IS NULL
                ELSE content IS NULL AND run_id IS NOT NULL END
            )
        )"""
    )
    op.execute("CREATE UNIQUE INDEX messages_run ON messages (tenant_id, run_id)")
    op.execute("CREATE INDEX messages_in_order ON messages (tenant_id, thread_id, seq)")
    op.execute("CREATE INDEX messages_by_parent ON messages (tenant_id, thread_id, parent_id)")


def downgrade() -> None:
    """Drop the tables."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DROP TABLE messages")
    op.execute("DROP TABLE threads")
