"""Store the messages of threads in the transaction that accepts their run.

A new run that answers in a thread brings its messages in ``request.chat.reply``. A trigger stores
them and removes them from the request, so they are stored with the run or not at all. Runs of the
previous release bring none: that release stores the messages before.

``threads.erasures`` counts the changes of stored texts. A process that remembers the texts of a
branch states the number that it knows, and the run is refused if it has changed since.

Revision: 20261130_1340
Revises: 20261130_1330
"""

from alembic import op

revision = "20261130_1340"
down_revision = "20261130_1330"
branch_labels = None
depends_on = None

COLUMN = "ALTER TABLE threads ADD COLUMN erasures bigint NOT NULL DEFAULT 0"

STORE = """
CREATE FUNCTION caseworker_store_reply() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    reply jsonb := NEW.request #> '{chat,reply}';
    of_thread text := NEW.request #>> '{chat,thread_id}';
    outcome text := caseworker_add_messages(
        NEW.tenant_id, of_thread, (reply -> 'messages')::json, (reply ->> 'limit')::integer);
BEGIN
    IF outcome = 'added' AND reply ->> 'erasures' <> (SELECT erasures::text FROM threads
        WHERE tenant_id = NEW.tenant_id AND thread_id = of_thread)
    THEN
        outcome := 'changed';
    END IF;
    IF outcome NOT IN ('added', 'repeated', 'conflict') THEN
        RAISE EXCEPTION USING ERRCODE = 'CW001', MESSAGE = outcome;
    END IF;
    NEW.request := NEW.request #- '{chat,reply}';
    RETURN NEW;
END $$
"""
"""Stores the messages of a new run. The insert itself finds out about a run with the same ID."""

STORE_REPLIES = """
CREATE TRIGGER runs_store_reply BEFORE INSERT ON runs FOR EACH ROW
WHEN (NEW.request #> '{chat,reply}' IS NOT NULL) EXECUTE FUNCTION caseworker_store_reply()
"""

LOCKED = """ORDER BY tenant_id, thread_id FOR UPDATE;"""
COUNTED = f"""{LOCKED}
    UPDATE threads SET erasures = erasures + 1
    WHERE (tenant_id, thread_id) IN (SELECT tenant_id, thread_id FROM gone);"""

CHANGE = """
DO $do$ BEGIN EXECUTE (
    SELECT replace(text, $b${}$b$, $a${}$a$)
    FROM pg_get_functiondef('caseworker_keep_messages()'::regprocedure) AS function(text)
); END $do$
"""
"""Redefines the function that keeps erased messages for unfinished runs."""


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(COLUMN)
    op.execute(STORE)
    op.execute(STORE_REPLIES)
    op.execute(CHANGE.format(LOCKED, COUNTED))


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(CHANGE.format(COUNTED, LOCKED))
    op.execute("DROP TRIGGER runs_store_reply ON runs")
    op.execute("DROP FUNCTION caseworker_store_reply()")
    op.execute("ALTER TABLE threads DROP COLUMN erasures")
