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

COLUMNS = (
    "ALTER TABLE threads ADD COLUMN erasures bigint NOT NULL DEFAULT 0",
    "ALTER TABLE calls ADD COLUMN answer_of text",
)

STORE = """
CREATE FUNCTION caseworker_store_reply() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    reply jsonb := NEW.request #> '{chat,reply}';
    of_thread text := NEW.request #>> '{chat,thread_id}';
    outcome text := caseworker_add_messages(
        NEW.tenant_id, of_thread, (reply -> 'messages')::json, (reply ->> 'limit')::integer);
BEGIN
    IF outcome = 'added' AND (
        reply ->> 'erasures' <> (SELECT erasures::text FROM threads
            WHERE tenant_id = NEW.tenant_id AND thread_id = of_thread)
        OR reply ->> 'newest' IS DISTINCT FROM (SELECT message_id FROM messages
            WHERE tenant_id = NEW.tenant_id AND thread_id = of_thread
            ORDER BY seq DESC LIMIT 1 OFFSET jsonb_array_length(reply -> 'messages'))
            AND reply ? 'newest')
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
"""Stores the messages of a new run. The insert itself finds out about a run with the same ID.

If the run states the newest message of the thread, it is refused if another one has followed."""

STORE_REPLIES = """
CREATE TRIGGER runs_store_reply BEFORE INSERT ON runs FOR EACH ROW
WHEN (NEW.request #> '{chat,reply}' IS NOT NULL) EXECUTE FUNCTION caseworker_store_reply()
"""

QUESTION, ANSWER = """'{"text_of":"question"}'""", """'{"text_of":"answer"}'"""
QUESTION_OF = "to_json({}.request #>> '{{inputs,default}}')::text"
ANSWER_OF = "to_json({}.result #>> ARRAY['outputs', {}, 'result', 'raw_content'])::text"

SHORTEN = f"""
CREATE FUNCTION caseworker_shorten_calls(run runs, step text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    question text := {QUESTION_OF.format("run")};
    answer text := {ANSWER_OF.format("run", "step")};
BEGIN
    IF octet_length(question) > 100 IS NOT TRUE THEN
        question := chr(1); -- is in no JSON
    END IF;
    IF octet_length(answer) > 100 IS NOT TRUE THEN
        answer := chr(1);
    END IF;
    UPDATE calls c SET answer_of = step,
        value = replace(replace(c.value::text, question, {QUESTION}), answer, {ANSWER})::json
    WHERE c.tenant_id = run.tenant_id AND c.run_id = run.run_id AND c.outcome = 'result'
        AND (c.seq <= 20 OR c.seq > (SELECT max(seq) - 20 FROM calls
            WHERE tenant_id = run.tenant_id AND run_id = run.run_id))
        AND (starts_with(c.call_key, 'step:') OR starts_with(c.call_key, step || '/'))
        AND octet_length(c.value::text) < 65536
        AND (strpos(c.value::text, question) > 0 OR strpos(c.value::text, answer) > 0)
        AND strpos(c.value::text, question || ':') = 0 AND strpos(c.value::text, answer || ':') = 0
        AND strpos(c.value::text, '{{"text_of":') = 0;
EXCEPTION WHEN invalid_text_representation THEN
    NULL; -- a text was found across two strings: the values stay whole
END $$
"""
"""Replaces the texts of the question and the answer in the values of calls, outside of keys.

``step`` is the last step of the graph. The first calls of a run are its steps, and one of the last
calls is the one that answered, so the rest of a long run is not read."""

STORE_ANSWER = """
CREATE OR REPLACE FUNCTION caseworker_store_answer() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    last_steps jsonb;
BEGIN
    UPDATE messages m SET answer = caseworker_answer(NEW, m.ends)
    WHERE m.tenant_id = NEW.tenant_id AND m.run_id = NEW.run_id AND m.run_erased_at IS NULL
        AND m.thread_id = NEW.request #>> '{chat,thread_id}'
    RETURNING m.ends INTO last_steps;
    IF jsonb_array_length(last_steps) = 1 THEN
        PERFORM caseworker_shorten_calls(NEW, last_steps ->> 0);
    END IF;
    DELETE FROM kept_messages WHERE tenant_id = NEW.tenant_id AND run_id = NEW.run_id;
    RETURN NULL;
END $$
"""

STORE_ANSWER_BEFORE = """
CREATE OR REPLACE FUNCTION caseworker_store_answer() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE messages m SET answer = caseworker_answer(NEW, m.ends)
    WHERE m.tenant_id = NEW.tenant_id AND m.run_id = NEW.run_id AND m.run_erased_at IS NULL
        AND m.thread_id = NEW.request #>> '{chat,thread_id}';
    DELETE FROM kept_messages WHERE tenant_id = NEW.tenant_id AND run_id = NEW.run_id;
    RETURN NULL;
END $$
"""

WHOLE = f"""
CREATE FUNCTION caseworker_whole_value(value json, step text, of_tenant text, of_run text)
RETURNS json LANGUAGE sql STABLE AS $$
    SELECT replace(replace(value::text, {QUESTION}, coalesce({QUESTION_OF.format("r")}, 'null')),
        {ANSWER}, coalesce({ANSWER_OF.format("r", "step")}, 'null'))::json
    FROM runs r WHERE r.tenant_id = of_tenant AND r.run_id = of_run
$$
"""

VALUE = "calls.value,"
WHOLE_VALUE = """CASE WHEN calls.answer_of IS NULL THEN calls.value ELSE caseworker_whole_value(
    calls.value, calls.answer_of, calls.tenant_id, calls.run_id) END AS value,"""
ANY_WHOLE_VALUE = r"CASE\s+WHEN \(calls\.answer_of IS NULL\).*?END AS value,"

CHANGE_VIEW = """
DO $do$ BEGIN EXECUTE (
    SELECT 'CREATE OR REPLACE VIEW journal WITH (security_invoker = true) AS '
        || regexp_replace(pg_get_viewdef('journal'::regclass), $b${}$b$, $a${}$a$)
); END $do$
"""

RESTORE = """
UPDATE calls c SET value = j.value, answer_of = NULL FROM journal j
WHERE c.answer_of IS NOT NULL AND j.tenant_id = c.tenant_id AND j.run_id = c.run_id
    AND j.seq = c.seq
"""

LOCKED = """ORDER BY tenant_id, thread_id FOR UPDATE;"""
COUNTED = f"""{LOCKED}
    DECLARE
        changed_in record;
    BEGIN
        FOR changed_in IN SELECT DISTINCT tenant_id, thread_id FROM gone LOOP
            UPDATE threads SET erasures = erasures + 1 WHERE tenant_id = changed_in.tenant_id
                AND thread_id = changed_in.thread_id;
        END LOOP;
    END;"""

CHANGE = """
DO $do$ BEGIN EXECUTE (
    SELECT replace(text, $b${}$b$, $a${}$a$)
    FROM pg_get_functiondef('caseworker_keep_messages()'::regprocedure) AS function(text)
); END $do$
"""
"""Redefines the function that keeps erased messages for unfinished runs."""


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for statement in (*COLUMNS, STORE, STORE_REPLIES, SHORTEN, STORE_ANSWER, WHOLE):
        op.execute(statement)
    op.execute(CHANGE_VIEW.format(VALUE.replace(".", r"\."), WHOLE_VALUE))
    op.execute(CHANGE.format(LOCKED, COUNTED))


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(CHANGE.format(COUNTED, LOCKED))
    op.execute("DROP TRIGGER runs_store_reply ON runs")
    op.execute("DROP FUNCTION caseworker_store_reply()")
    op.execute(STORE_ANSWER_BEFORE)
    op.execute("DROP FUNCTION caseworker_shorten_calls(runs, text)")
    op.execute(RESTORE)
    op.execute(CHANGE_VIEW.format(ANY_WHOLE_VALUE, VALUE))
    op.execute("DROP FUNCTION caseworker_whole_value(json, text, text, text)")
    op.execute("ALTER TABLE calls DROP COLUMN answer_of")
    op.execute("ALTER TABLE threads DROP COLUMN erasures")
