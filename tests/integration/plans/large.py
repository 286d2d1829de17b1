"""Fills a database with 100,000 runs, which are copies of the real runs of one tenant.

Tenants are of very different sizes: ``large`` has most runs, ``small`` one copy of each, fifty
tenants share the rest, and fifty may not start their queued runs. One thread is long. Each copy has
new IDs, and is 25 minutes older than the previous one.
"""

from typing import Final

import psycopg
from psycopg import sql

ORIGIN: Final = "origin"
RUNS: Final = 100_000

_COPIES = """
CREATE TEMP TABLE copies AS SELECT n, '.c' || n AS suffix, n * interval '25 minutes' AS earlier,
    CASE WHEN n <= %(copies)s * 6 / 10 THEN 'large' WHEN n = %(copies)s THEN 'small'
        ELSE 't' || n %% 50 END AS tenant
FROM generate_series(1, %(copies)s) n
"""

_TABLES = """
SELECT c.table_name, array_agg(ARRAY[c.column_name, c.data_type] ORDER BY c.ordinal_position)
FROM information_schema.columns c JOIN information_schema.tables t USING (table_schema, table_name)
WHERE table_schema = 'public' AND t.table_type = 'BASE TABLE' AND c.is_identity = 'NO'
GROUP BY c.table_name HAVING bool_or(c.column_name = 'tenant_id')
"""
_KEPT: Final = frozenset(
    {
        *("api_keys", "quotas", "retention", "stored", "provider_turns", "mcp_credentials"),
        *("cost_sums", "cost_backfill", "waiting_tenants"),
    }
)
"""Tables that have few rows of a tenant, however many runs it has, or are filled afterwards."""

_SUFFIXED: Final = frozenset(
    {
        *("run_id", "thread_id", "message_id", "parent_id", "delivery_id", "last_run_id"),
        *("idempotency_key", "object_id", "concurrency_key"),
    }
)
_NEW: Final = {
    "tenant_id": "c.tenant",
    "schedule_id": "gen_random_uuid()",
    "suspect": "false",
    "summed": "true",
    "sha256": "sha256(o.sha256 || c.n::text::bytea)",
    "next_at": "now() + interval '60 days' + c.n * interval '1 minute'",
    "expires_at": "now() + interval '60 days' + c.n * interval '1 minute'",
    "deadline": "now() + interval '60 days'",
}
_REQUEST = """CASE WHEN o.request #>> '{chat,thread_id}' IS NULL THEN o.request ELSE jsonb_set(
    o.request, '{chat,thread_id}', to_jsonb((o.request #>> '{chat,thread_id}') || c.suffix)) END"""
_QUEUED_AT = """CASE WHEN o.finished_at IS NULL
    THEN now() + interval '60 days' + c.n * interval '1 minute' ELSE o.queued_at - c.earlier END"""

_MORE = """
-- runs that their tenants may not start now
INSERT INTO quotas (tenant_id, max_running) SELECT 'blocked-' || t, 0 FROM generate_series(1, 50) t;
INSERT INTO runs (tenant_id, run_id, kind, status, request, request_hash, metadata, created_at,
    queued_at)
SELECT 'blocked-' || t, 'queued-' || n, kind, 'queued', request, request_hash, metadata,
    now() - interval '1 h', now() - interval '1 h'
FROM (SELECT * FROM runs WHERE tenant_id = 'origin' AND kind = 'graph' AND status = 'completed'
    LIMIT 1) r, generate_series(1, 50) t, generate_series(1, 50) n;
-- jobs of queued runs, which are not due, and ended jobs
INSERT INTO procrastinate_jobs (queue_name, task_name, queueing_lock, args, scheduled_at)
SELECT 'runs', 'execute_run', tenant_id || '/' || run_id,
    jsonb_build_object('tenant', tenant_id, 'run_id', run_id), queued_at
FROM runs WHERE status = 'queued' AND queued_at > now() AND tenant_id <> 'origin';
INSERT INTO procrastinate_jobs (queue_name, task_name, status, args)
SELECT 'runs', 'execute_run', 'succeeded', jsonb_build_object('tenant', 'large', 'run_id', 'r' || n)
FROM generate_series(1, 20000) n;
-- a thread of 450 turns, one a day
INSERT INTO threads (tenant_id, thread_id, kind, definition, inputs, tools, metadata, request_hash,
    created_at)
SELECT 'large', 'long', kind, definition, inputs, tools, '{}', request_hash,
    now() - interval '450 days'
FROM threads WHERE tenant_id = 'origin' AND thread_id = 'talk';
CREATE TEMP TABLE answer AS SELECT r.*, m.ends, m.answer, m.request_hash AS message_hash
    FROM runs r
    JOIN messages m USING (tenant_id, run_id) WHERE tenant_id = 'origin' AND thread_id = 'talk'
        AND r.status = 'completed' LIMIT 1;
INSERT INTO messages (tenant_id, thread_id, message_id, parent_id, role, content, run_id, ends,
    answer, request_hash, created_at)
SELECT 'large', 'long', CASE role WHEN 'user' THEN 'u' ELSE 'a' END || n,
    CASE WHEN role = 'assistant' THEN 'u' || n WHEN n > 1 THEN 'a' || n - 1 END,
    role, CASE role WHEN 'user' THEN 'Hello' END, CASE role WHEN 'assistant' THEN 'turn-' || n END,
    CASE role WHEN 'user' THEN '[]' ELSE ends END, CASE role WHEN 'assistant' THEN answer END,
    message_hash, now() - make_interval(days => 450 - n)
FROM generate_series(1, 450) n, (VALUES ('user'), ('assistant')) AS r(role), answer
ORDER BY n, role DESC;
INSERT INTO runs (tenant_id, run_id, kind, status, request, request_hash, metadata, created_at,
    queued_at, started_at, finished_at, result, usage, finish_reason, fence, attempts)
SELECT 'large', 'turn-' || n, kind, status,
    jsonb_set(request, '{chat,thread_id}', '"long"'), request_hash, metadata,
    now(), now(), now(), now(), result, usage, finish_reason, fence, attempts
FROM answer, generate_series(1, 450) n;
INSERT INTO run_costs SELECT (c).* FROM (SELECT jsonb_populate_record(k, jsonb_build_object(
    'tenant_id', 'large', 'run_id', 'turn-' || n, 'created_at', now(), 'summed', true)) AS c
FROM answer a JOIN run_costs k USING (tenant_id, run_id), generate_series(1, 450) n) turns;
-- sums of costs by hour and day
INSERT INTO cost_sums SELECT tenant_id, span, date_trunc(span, created_at, 'UTC'), status,
    stop_kind, stop_detail, agent, model, of_model, count(*) FILTER (WHERE part = 1), count(*),
    sum(llm_calls), sum(tokens), sum(cost_usd), sum(cost_usd_estimated), true
FROM run_costs, (VALUES ('hour'), ('day')) AS spans(span)
WHERE summed AND tenant_id <> 'origin' GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9;
SELECT caseworker_await_claims();
INSERT INTO stored (tenant_id, part, bytes, definitions, threads)
SELECT tenant_id, 0, sum(bytes), 0, 0 FROM stored_runs GROUP BY tenant_id ON CONFLICT DO NOTHING;
"""


def fill(connection: psycopg.Connection, *, runs: int = RUNS) -> dict[str, int]:
    """Copy the runs of the tenant ``origin``; return the rows of each table.

    The connection must commit each statement.
    """
    connection.execute("SET session_replication_role = replica")  # rows are consistent copies
    (of_origin,) = connection.execute(
        "SELECT count(*) FROM runs WHERE tenant_id = %s", (ORIGIN,)
    ).fetchone() or (0,)
    connection.execute(_COPIES, {"copies": -(-runs // of_origin)})
    for table, columns in connection.execute(_TABLES).fetchall():
        if table not in _KEPT:
            connection.execute(_copy(table, dict(columns)))
    connection.execute(_MORE)
    connection.execute("VACUUM ANALYZE")
    names = connection.execute(
        "SELECT relname FROM pg_class WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace"
    ).fetchall()
    return {name: _count(connection, name) for (name,) in names}


def _copy(table: str, columns: dict[str, str]) -> sql.Composed:
    """Return the statement that copies the rows of a table."""
    values = [_value(table, name, kind) for name, kind in columns.items()]
    return sql.SQL(
        "INSERT INTO {table} ({names}) SELECT {values} FROM {table} o, copies c"
        " WHERE o.tenant_id = {origin} ORDER BY c.n ON CONFLICT DO NOTHING"
    ).format(
        table=sql.Identifier(table),
        names=sql.SQL(", ").join(map(sql.Identifier, columns)),
        values=sql.SQL(", ").join(map(sql.SQL, values)),
        origin=ORIGIN,
    )


def _value(table: str, name: str, kind: str) -> str:
    """Return the SQL of a value in a copy of a row."""
    if table == "runs" and name in ("request", "queued_at"):
        return _REQUEST if name == "request" else _QUEUED_AT
    if name in _NEW and not (name == "sha256" and kind != "bytea"):
        return f"CASE WHEN o.{name} IS NOT NULL THEN {_NEW[name]} END"
    if name in _SUFFIXED or (name == "name" and table in ("definitions", "schedules")):
        return f"o.{name} || c.suffix"
    if kind.startswith("timestamp"):
        return f"o.{name} - c.earlier"
    return f"o.{name}"


def _count(connection: psycopg.Connection, table: str) -> int:
    counted = sql.SQL("SELECT count(*) FROM {}").format(sql.Identifier(table))
    (count,) = connection.execute(counted).fetchone() or (0,)
    return int(count)
