"""Store the usual rows of the journal and of the events in few bytes.

Rows that are there stay as they are. The columns that rows may do without lose nothing but their
NOT NULL, so no table is rewritten; the view gives calls back whole, whichever way they are stored.

Revision: 20261122_2001
Revises: 20261122_2000
"""

from alembic import op

revision = "20261122_2001"
down_revision = "20261122_2000"
branch_labels = None
depends_on = None

# Letters of caseworker.adapters.postgres.brief.DIMENSIONS.
CHARGE = """(
    SELECT coalesce(jsonb_object_agg(coalesce(names.name, part.key), part.value), '{}')
    FROM jsonb_each(list -> 9) AS part LEFT JOIN (VALUES
        ('t', 'tokens'), ('s', 'seconds'), ('p', 'steps'), ('a', 'api_calls'), ('c', 'cost_usd'),
        ('m', 'llm_calls_small'), ('b', 'llm_calls_big'), ('o', 'tool_calls'), ('r', 'turns'),
        ('e', 'tokens_estimated'), ('f', 'cost_usd_estimated'), ('u', 'unpriced_calls')
    ) AS names (letter, name) ON names.letter = part.key
)"""

NUMBER = "'n' || lpad({0}, greatest(6, length({0})), '0')"

NODE = f"""jsonb_build_object(
    'node_id', {NUMBER.format("seq::text")},
    'parent_id', {NUMBER.format("(list ->> 4)")},
    'kind', list -> 0,
    'name', list -> 1,
    'start_ts_ms', list -> 2,
    'end_ts_ms', (list ->> 2)::bigint + (list ->> 3)::bigint,
    'status', status,
    'model', list -> 5,
    'retries_used', coalesce(list -> 11, '0'),
    'cost_usd', list -> 6,
    'tokens_in', list -> 7,
    'tokens_out', list -> 8,
    'stop_reason', list -> 12,
    'error_class', list -> 13,
    'metadata', CASE WHEN call_key IS NULL OR list ->> 0 = 'system' THEN list -> 10
        ELSE list -> 10 || jsonb_build_object('call_key', call_key) END
)"""

REQUEST = """json_build_object('messages', (
    SELECT json_agg(CASE json_array_length(message)
        WHEN 1 THEN json_build_object('role', 'assistant', 'reply_of', message -> 0)
        ELSE json_build_object('role', 'tool', 'tool_call_id', message -> 0,
            'tool_name', message -> 1, 'result_of', message -> 2) END ORDER BY place)
    FROM json_array_elements(request) WITH ORDINALITY AS each (message, place) WHERE place > 2
), 'after', json_build_object('call_key', request -> 0, 'messages', request -> 1))"""

VIEW = f"""
CREATE VIEW journal AS SELECT tenant_id, run_id, seq, status, request_hash, call_key, outcome,
    CASE WHEN brief IS NULL THEN charge ELSE {CHARGE} END AS charge,
    CASE WHEN brief IS NULL THEN node ELSE {NODE} END AS node,
    value, CASE WHEN json_typeof(request) = 'array' THEN {REQUEST} ELSE request END AS request
FROM calls LEFT JOIN LATERAL (SELECT brief::jsonb AS list OFFSET 0) AS read ON true
"""


def upgrade() -> None:
    """Add the columns and the view."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(
        """ALTER TABLE calls ADD COLUMN brief json,
        ALTER COLUMN charge DROP NOT NULL, ALTER COLUMN node DROP NOT NULL"""
    )
    op.execute("ALTER TABLE events ADD COLUMN brief text, ALTER COLUMN data DROP NOT NULL")
    op.execute(VIEW)


def downgrade() -> None:
    """Write the rows out, and remove the columns."""
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(
        """UPDATE calls SET node = journal.node, charge = journal.charge,
            request = journal.request
        FROM journal
        WHERE (calls.brief IS NOT NULL OR json_typeof(calls.request) = 'array')
            AND journal.tenant_id = calls.tenant_id
            AND journal.run_id = calls.run_id AND journal.seq = calls.seq"""
    )
    op.execute("DROP VIEW journal")
    op.execute(
        """ALTER TABLE calls DROP COLUMN brief,
        ALTER COLUMN charge SET NOT NULL, ALTER COLUMN node SET NOT NULL"""
    )
    for code, kind, names in FORMS:
        op.execute(_written_out(code, kind, names))
    op.execute(
        """UPDATE events SET once_key = step_id || '|' || type || once_key
        WHERE once_key LIKE '|%%'"""
    )
    op.execute("ALTER TABLE events DROP COLUMN brief, ALTER COLUMN data SET NOT NULL")


# As in caseworker.adapters.postgres.brief.
FORMS = (
    ("~c", "call.started", "kind name model"),
    ("~d", "call.completed", "kind name model attempts tokens_in tokens_out"),
    ("~t", "turn_start", "turn_number"),
    ("~k", "thinking", "turn_number offset chars text_of"),
    ("~p", "content_chunk", "turn_number offset chars text_of"),
    ("~u", "usage", "turn_number tokens_in tokens_out cost_usd"),
    ("~s", "tool_call_start", "turn_number tool_call"),
    ("~e", "tool_call_end", "turn_number tool_call_id name text_of"),
    ("~z", "turn_end", "turn_number"),
)


def _written_out(code: str, kind: str, names: str) -> str:
    values = {name: f"list -> {place}" for place, name in enumerate(names.split())}
    if "text_of" in values:
        rest = f"substr({values['text_of'].replace('->', '->>')}, 2)"
        values["text_of"] = f"step_id || '/turn/' || (list ->> 0) || {rest}"
    data = ", ".join(f"'{name}', {value}" for name, value in values.items())
    return f"""UPDATE events SET type = '{kind}', brief = NULL, data = jsonb_build_object({data})
        FROM (SELECT tenant_id AS of_tenant, run_id AS of_run, seq AS of_seq,
            ('[' || brief || ']')::jsonb AS list FROM events WHERE type = '{code}') AS read
        WHERE tenant_id = of_tenant AND run_id = of_run AND seq = of_seq"""
