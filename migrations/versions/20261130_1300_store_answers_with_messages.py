"""Store the answers of threads with their messages.

A trigger stores an answer when its run ends, whichever process ends it. Runs that answer name the
last message of their branch (``request.chat.leaf``), and the processes that execute them read the
branch. Processes of the previous release do not claim such a run: the functions that they call skip
it. Its stored ``request.chat.messages`` are one empty message, with which they could not call a
model either.

A message that is deleted or erased while an unfinished run needs it is kept for that run in
``kept_messages``.

Answers from before this revision are stored with their messages in the background, and are read
from the results of their runs until then.

Revision: 20261130_1300
Revises: 20261130_0400
"""

from alembic import op

revision = "20261130_1300"
down_revision = "20261130_0400"
branch_labels = None
depends_on = None

TABLES = (
    "ALTER TABLE messages ADD COLUMN answer json",
    """CREATE TABLE kept_messages (
        tenant_id text NOT NULL,
        run_id text NOT NULL,
        message_id text NOT NULL,
        parent_id text,
        role text NOT NULL,
        content text,
        ends jsonb NOT NULL,
        answer json,
        PRIMARY KEY (tenant_id, run_id, message_id)
    )""",
    """CREATE TABLE moves (
        name text NOT NULL,
        place text[] NOT NULL,
        ended_at timestamptz,
        PRIMARY KEY (name)
    )""",
)

ANSWER = """
CREATE FUNCTION caseworker_answer(run runs, ends jsonb) RETURNS json LANGUAGE plpgsql STABLE AS $$
DECLARE
    outputs jsonb := run.result -> 'outputs';
    conversation jsonb := outputs #> ARRAY[ends ->> 0, 'result', 'messages'];
    question jsonb := jsonb_build_object('role', 'user', 'content', coalesce(
        nullif(run.request #>> '{chat,messages,-1,content}', ''), run.request #>> '{inputs,default}'
    ));
    answer json;
    calls json;
BEGIN
    SELECT json_build_object(
        'status', run.status,
        'parts', coalesce(json_agg(
            coalesce(nullif(given -> 'default', 'null'), given #> '{result,raw_content}')
            ORDER BY place) FILTER (WHERE given IS NOT NULL), '[]'),
        'incomplete', coalesce(max(given #>> '{result,incomplete}'),
            CASE run.status WHEN 'cancelled' THEN run.status END),
        'incomplete_reason', max(given #>> '{result,incomplete_reason}'),
        'model', (
            SELECT coalesce(
                nullif(made.value ->> 'model', ''), made.brief ->> 5, made.node ->> 'model')
            FROM calls made
            WHERE made.tenant_id = run.tenant_id AND made.run_id = run.run_id
                AND EXISTS (SELECT FROM jsonb_array_elements_text(ends) AS last(step_id)
                    WHERE starts_with(made.call_key, step_id || '/')
                        OR starts_with(made.call_key, step_id || '~'))
                AND coalesce(made.brief ->> 0, made.node ->> 'kind') = 'llm'
                AND made.status NOT IN ('created', 'fail')
                AND made.outcome IS DISTINCT FROM 'not_made'
            ORDER BY made.seq DESC LIMIT 1))
    INTO answer
    FROM jsonb_array_elements_text(ends) WITH ORDINALITY AS ending(step, place),
        LATERAL (SELECT outputs -> step AS given) output;
    IF jsonb_array_length(ends) <> 1 OR jsonb_typeof(conversation) IS DISTINCT FROM 'array'
        OR NOT conversation @> '[{"role": "tool"}]'
    THEN
        RETURN answer;
    END IF;
    WITH message AS MATERIALIZED (
        SELECT value AS said, place, lead(value ->> 'role') OVER (ORDER BY place) AS next
        FROM jsonb_array_elements(conversation) WITH ORDINALITY AS m(value, place)
    ), own AS MATERIALIZED (
        SELECT said, place, coalesce(said ->> 'reply_of', said ->> 'result_of') AS call_key
        FROM message
        WHERE place > (SELECT max(place) FROM message WHERE said = question)
            AND (said ->> 'role' = 'tool' OR said ->> 'role' = 'assistant' AND next = 'tool')
    )
    SELECT json_build_object(
        'messages', json_agg(said ORDER BY place),
        'values', (
            SELECT json_object_agg(made.call_key, CASE WHEN said ? 'reply_of' THEN
                json_build_object('text', made.value -> 'text',
                    'tool_calls', made.value -> 'tool_calls') ELSE made.value END)
            FROM own JOIN calls made ON made.tenant_id = run.tenant_id
                AND made.run_id = run.run_id AND made.call_key = own.call_key
            WHERE made.outcome = 'result'))
    INTO calls FROM own HAVING count(*) > 0;
    IF calls IS NULL THEN
        RETURN answer;
    END IF;
    RETURN json_build_object('status', answer -> 'status', 'parts', answer -> 'parts',
        'incomplete', answer -> 'incomplete', 'incomplete_reason', answer -> 'incomplete_reason',
        'model', answer -> 'model',
        'calls', CASE WHEN octet_length(calls::text) <= 1048576 THEN calls ELSE '"too long"' END);
EXCEPTION WHEN data_exception THEN -- the run must end nevertheless
    RETURN json_build_object('status', run.status, 'parts', '[]'::json);
END $$
"""
"""Returns the answer in an ended run, from the outputs of the last steps ``ends`` of its graph.

``parts`` are the outputs in order, and ``calls`` the tool calls since the question with their
results, if there is one last step and it is an agent. The model is that of the last call in these
steps that was made and did not fail. It comes from the table ``calls``, because the view
``journal`` would build the node of each call of the run.
"""

STORE = """
CREATE FUNCTION caseworker_store_answer() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE messages m SET answer = caseworker_answer(NEW, m.ends)
    WHERE m.tenant_id = NEW.tenant_id AND m.run_id = NEW.run_id AND m.run_erased_at IS NULL
        AND m.thread_id = NEW.request #>> '{chat,thread_id}';
    DELETE FROM kept_messages WHERE tenant_id = NEW.tenant_id AND run_id = NEW.run_id;
    RETURN NULL;
END $$
"""

STORE_ANSWERS = """
CREATE TRIGGER runs_store_answer AFTER UPDATE OF status ON runs FOR EACH ROW
WHEN (NEW.finished_at IS NOT NULL AND OLD.finished_at IS NULL AND NEW.request ? 'chat')
EXECUTE FUNCTION caseworker_store_answer()
"""

ERASE = """
CREATE FUNCTION caseworker_erase_answer() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.answer := NULL;
    RETURN NEW;
END $$
"""

ERASE_ANSWERS = """
CREATE TRIGGER messages_erase_answer BEFORE UPDATE ON messages FOR EACH ROW
WHEN (NEW.run_erased_at IS NOT NULL AND NEW.answer IS NOT NULL)
EXECUTE FUNCTION caseworker_erase_answer()
"""
"""Any process may mark a run as erased, also one of the previous release."""

KEEP = """
CREATE FUNCTION caseworker_keep_messages() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' THEN
        IF NOT EXISTS (SELECT FROM gone g JOIN changed c USING (tenant_id, thread_id, message_id)
            WHERE c.content IS DISTINCT FROM g.content
                OR c.run_erased_at IS NOT NULL AND g.run_erased_at IS NULL)
        THEN
            RETURN NULL;
        END IF;
    ELSIF NOT EXISTS (SELECT FROM gone) THEN
        RETURN NULL;
    END IF;
    PERFORM FROM threads WHERE (tenant_id, thread_id) IN (SELECT tenant_id, thread_id FROM gone)
    ORDER BY tenant_id, thread_id FOR UPDATE;
    INSERT INTO kept_messages
    WITH RECURSIVE present AS NOT MATERIALIZED (
        SELECT m.tenant_id, m.thread_id, m.message_id, m.parent_id FROM messages m
        UNION ALL SELECT g.tenant_id, g.thread_id, g.message_id, g.parent_id FROM gone g
        WHERE TG_OP = 'DELETE'
    ), branch AS (
        SELECT r.tenant_id, r.run_id, r.request #>> '{chat,thread_id}' AS thread_id,
            r.request #>> '{chat,leaf}' AS message_id
        FROM (SELECT DISTINCT tenant_id, thread_id FROM gone) thread
        JOIN runs r ON r.tenant_id = thread.tenant_id
            AND r.request #>> '{chat,thread_id}' = thread.thread_id
        WHERE r.finished_at IS NULL AND r.request #>> '{chat,leaf}' IS NOT NULL
        UNION ALL
        SELECT b.tenant_id, b.run_id, b.thread_id, p.parent_id
        FROM branch b JOIN present p USING (tenant_id, thread_id, message_id)
        WHERE p.parent_id IS NOT NULL
    )
    SELECT b.tenant_id, b.run_id, g.message_id, g.parent_id, g.role, g.content, g.ends,
        coalesce(g.answer, (SELECT caseworker_answer(r, g.ends) FROM runs r
            WHERE r.tenant_id = g.tenant_id AND r.run_id = g.run_id
                AND g.run_erased_at IS NULL AND r.finished_at IS NOT NULL
                AND r.request #>> '{chat,thread_id}' = g.thread_id))
    FROM branch b JOIN gone g USING (tenant_id, thread_id, message_id)
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$
"""
"""Keeps messages that are erased or deleted for the unfinished runs whose branch has them.

The lock on the thread orders this against runs that read their branches, which lock it too: a run
that has read its branch before is seen here, and a run that is not seen here reads it afterwards.
"""

KEEP_DELETED = """
CREATE TRIGGER messages_keep_deleted AFTER DELETE ON messages REFERENCING OLD TABLE AS gone
FOR EACH STATEMENT EXECUTE FUNCTION caseworker_keep_messages()
"""

KEEP_ERASED = """
CREATE TRIGGER messages_keep_erased AFTER UPDATE ON messages
REFERENCING OLD TABLE AS gone NEW TABLE AS changed
FOR EACH STATEMENT EXECUTE FUNCTION caseworker_keep_messages()
"""

ADD = """
CREATE FUNCTION caseworker_add_messages(
    of_tenant text, of_thread text, added json, most integer
) RETURNS text LANGUAGE plpgsql AS $$
DECLARE
    reply json := added -> -1;
    known text;
BEGIN
    PERFORM FROM threads WHERE tenant_id = of_tenant AND thread_id = of_thread FOR NO KEY UPDATE;
    IF NOT FOUND THEN
        RETURN 'no thread';
    END IF;
    SELECT request_hash INTO known FROM messages WHERE tenant_id = of_tenant
        AND thread_id = of_thread AND message_id = reply ->> 'message_id';
    IF FOUND THEN
        IF known <> reply ->> 'request_hash' THEN
            RETURN 'mismatch';
        END IF;
        UPDATE messages SET run_erased_at = NULL WHERE tenant_id = of_tenant
            AND thread_id = of_thread AND message_id = reply ->> 'message_id'
            AND run_erased_at IS NOT NULL;
        RETURN 'repeated';
    END IF;
    PERFORM FROM runs WHERE tenant_id = of_tenant AND run_id = reply ->> 'run_id'
        AND request IS NOT NULL;
    IF FOUND THEN
        RETURN 'conflict';
    END IF;
    IF most < json_array_length(added) + (SELECT count(*) FROM messages
        WHERE tenant_id = of_tenant AND thread_id = of_thread)
    THEN
        RETURN 'full';
    END IF;
    INSERT INTO messages (tenant_id, thread_id, message_id, parent_id, role, content, run_id,
        request_hash, ends, created_at)
    SELECT of_tenant, of_thread, message_id, parent_id, role, content, run_id, request_hash, ends,
        now()
    FROM json_to_recordset(added) AS m(message_id text, parent_id text, role text, content text,
        run_id text, request_hash text, ends jsonb);
    RETURN 'added';
END $$
"""
"""Adds messages to a thread, the last of which is an answer, unless the same request added them.

The lock on the thread makes concurrent additions and deletions wait."""

OF_TEXT = "coalesce(octet_length(content), 0)"
WITH_ANSWERS = f"{OF_TEXT} + coalesce(octet_length(answer::text), 0)"

COUNT_ANSWERS = """
CREATE TRIGGER caseworker_counts_update AFTER UPDATE ON messages
REFERENCING OLD TABLE AS removed NEW TABLE AS added
FOR EACH STATEMENT EXECUTE FUNCTION caseworker_count_messages()
"""

UNCOUNT = """
INSERT INTO stored AS s (tenant_id, part, bytes, definitions, threads)
SELECT tenant_id, 0, -sum(octet_length(answer::text)), 0, 0 FROM messages
WHERE answer IS NOT NULL GROUP BY tenant_id
ON CONFLICT (tenant_id, part) DO UPDATE SET bytes = s.bytes + excluded.bytes
"""

CHANGE = """
DO $do$ BEGIN EXECUTE (
    SELECT replace(text, $b${}$b$, $a${}$a$)
    FROM pg_get_functiondef('{}'::regprocedure) AS function(text)
); END $do$
"""
"""Redefines a function with a changed text."""

COUNTS = "caseworker_count_messages()"

CLAIMS_BEFORE = (
    "caseworker_claim(text, integer, text, text)",
    "caseworker_claim(text, integer, text, text, text[])",
)
"""Functions by which the previous release and older ones claim runs."""

READY = "r.queued_at <= now_at"
WITH_MESSAGES = f"{READY} AND r.request #>> '{{chat,messages,0,content}}' IS DISTINCT FROM ''"


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for statement in TABLES:
        op.execute(statement)
    for statement in (ANSWER, STORE, ERASE, KEEP, ADD):
        op.execute(statement)
    op.execute(CHANGE.format(OF_TEXT, WITH_ANSWERS, COUNTS))
    for trigger in (COUNT_ANSWERS, ERASE_ANSWERS, KEEP_DELETED, KEEP_ERASED, STORE_ANSWERS):
        op.execute(trigger)
    for function in CLAIMS_BEFORE:
        op.execute(CHANGE.format(READY, WITH_MESSAGES, function))
    op.execute("SELECT caseworker_keep_tenants_apart()")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for function in CLAIMS_BEFORE:
        op.execute(CHANGE.format(WITH_MESSAGES, READY, function))
    op.execute("DROP TRIGGER runs_store_answer ON runs")
    for name in ("caseworker_counts_update", "messages_erase_answer", "messages_keep_deleted"):
        op.execute(f"DROP TRIGGER {name} ON messages")
    op.execute("DROP TRIGGER messages_keep_erased ON messages")
    op.execute(UNCOUNT)
    op.execute(CHANGE.format(WITH_ANSWERS, OF_TEXT, COUNTS))
    op.execute("DROP FUNCTION caseworker_add_messages(text, text, json, integer)")
    op.execute("DROP FUNCTION caseworker_keep_messages()")
    op.execute("DROP FUNCTION caseworker_erase_answer()")
    op.execute("DROP FUNCTION caseworker_store_answer()")
    op.execute("DROP FUNCTION caseworker_answer(runs, jsonb)")
    op.execute("DROP TABLE kept_messages, moves")
    op.execute("ALTER TABLE messages DROP COLUMN answer")
