"""Fills a database with copies of real runs by SQL, as if they had been made over 90 days.

Every row that belongs to an original run or thread is copied, in all tables, so that the next
table needs no change here. Triggers are disabled for speed, so sums that triggers keep are computed
at the end.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Final

import psycopg
from psycopg import sql
from sqlalchemy.engine import make_url

from bench.growth.originals import AGENT, GRAPH, TENANT, Original, make_originals
from bench.servers import another_database, asking, models, service
from caseworker.platform.postgres.schema_version import upgrade

BOOTSTRAP: Final = "b" * 40
LARGE: Final = "large"
"""The tenant with a sixth of all runs."""
SMALL: Final = "small"
"""The tenant that has as many runs in a small database as in a large one."""
SMALL_RUNS: Final = 500
TENANTS: Final = 200
DAYS: Final = 90
CONNECTIONS: Final = 2
AT_ONCE: Final = 10_000
"""Runs that one transaction copies."""

_PREPARE: Final = f"""
CREATE SCHEMA growth;
CREATE TABLE growth.originals (
    name text, run_id text, created_at timestamptz, thread_id text, copies integer, first integer
);
CREATE FUNCTION growth.tenant(number bigint, every bigint) RETURNS text IMMUTABLE LANGUAGE sql
RETURN CASE
    WHEN number % every = 0 THEN '{SMALL}'
    ELSE coalesce(nullif('tenant-' || floor({TENANTS - 1}
        * ((hashint8(number)::bigint & 2147483647) / 2147483648.0) ^ 3)::text, 'tenant-0'),
        '{LARGE}')
END;
"""
_BATCH: Final = """
CREATE TEMP TABLE batch ON COMMIT DROP AS
SELECT name, number, run_id AS old_id,
    (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7'
        || substr(md5(run_id || number), 1, 19))::uuid::text AS new_id,
    growth.tenant(number, %(every)s) AS tenant_id, thread_id AS old_thread,
    thread_id || '-' || number AS new_thread, at - created_at AS shift,
    run_id = min(run_id) OVER (PARTITION BY name) AS leads
FROM growth.originals,
    generate_series(copies * %(part)s / %(parts)s, copies * (%(part)s + 1) / %(parts)s - 1) AS n,
    LATERAL (
        SELECT first + n AS number, %(now)s::timestamptz - interval '1 hour'
            - make_interval(secs => %(seconds)s::float8 * (copies - n) / copies) AS at
    ) AS moment
"""
"""Select the copies of one part of the time, with time-ordered IDs like those of the service."""

TABLES: Final = """
SELECT table_name,
    array_agg(column_name::text ORDER BY ordinal_position) FILTER (WHERE is_identity = 'NO'),
    array_agg(column_name::text) FILTER (WHERE udt_name = 'timestamptz') AS times,
    array_agg(column_name::text) FILTER (WHERE is_identity = 'YES') AS counters
FROM information_schema.columns JOIN information_schema.tables USING (table_schema, table_name)
WHERE table_schema = 'public' AND table_type = 'BASE TABLE' AND is_generated = 'NEVER'
GROUP BY table_name HAVING 'tenant_id' = ANY (array_agg(column_name::text))
ORDER BY table_name <> 'threads', table_name <> 'runs', table_name
"""
"""Select the tables with rows of tenants: name, columns, those of them that are times, and columns
that the database numbers."""

_VALUES: Final = {
    ("runs", "metadata"): """jsonb_build_object('customer', 'c-' || c.number % 1000,
        'source', (ARRAY['mail', 'web', 'app', 'phone', 'import'])[1 + c.number % 5])""",
    ("runs", "request"): """CASE WHEN c.new_thread IS NULL THEN t.request
        ELSE jsonb_set(t.request, '{chat,thread_id}', to_jsonb(c.new_thread)) END""",
    ("runs", "idempotency_key"): "NULL",
    ("runs", "queued_at"): "t.queued_at + CASE WHEN t.finished_at IS NULL THEN '0' ELSE shift END",
    ("approvals", "expires_at"): "t.expires_at",
    ("external_attempts", "sha256"): "sha256(c.new_id::bytea)",
    ("run_costs", "summed"): "false",
}
"""SQL of the columns whose values are not those of the original, moved in time."""

_ADD: Final = (
    """
INSERT INTO artifacts (tenant_id, run_id, name, slot, media_type, size_bytes, sha256, data,
    created_at)
SELECT tenant_id, new_id, 'report.md', 's0', 'text/markdown', 2000, repeat('0', 64),
    convert_to(repeat('x', 2000), 'utf8'), now() FROM batch
WHERE name = 'graph' AND number % 10 = 0
""",
    """
INSERT INTO webhook_deliveries (tenant_id, run_id, type, url, status, attempts, due_at,
    created_at, delivered_at)
SELECT tenant_id, new_id, 'run.completed', 'https://example.com/hook',
    CASE WHEN number % 500 = 0 THEN 'dead' ELSE 'delivered' END, 1, NULL, at, at
FROM batch JOIN growth.originals USING (name), LATERAL (SELECT created_at + shift AS at) AS m
WHERE old_id = run_id AND name IN ('agent', 'case') AND number % 10 = 0
""",
    """
INSERT INTO procrastinate_jobs (queue_name, task_name, priority, queueing_lock, args, scheduled_at)
SELECT queue_name, task_name, priority, tenant_id || '/' || new_id,
    args || jsonb_build_object('tenant', tenant_id, 'run_id', new_id), scheduled_at
FROM batch JOIN growth.procrastinate_jobs ON queueing_lock LIKE '%/' || old_id
""",
)
"""Statements that add rows which no original has, for each batch."""

_FINALLY: Final = (
    """
INSERT INTO definitions (tenant_id, name, version, description, definition, uses, sha256,
    size_bytes, created_at, kind)
SELECT tenant, name, version, description, definition, uses, sha256, size_bytes, created_at, kind
FROM definitions, (SELECT DISTINCT growth.tenant(n, %(every)s) AS tenant
    FROM generate_series(1, least(%(size)s, 100000)) AS n) AS tenants
WHERE tenant_id = %(origin)s ON CONFLICT DO NOTHING
""",
    """
INSERT INTO definitions (tenant_id, name, version, description, definition, uses, sha256,
    size_bytes, created_at, kind)
SELECT %(large)s, name || '-' || n, version, description, definition, uses, sha256, size_bytes,
    created_at, kind
FROM definitions, generate_series(1, %(size)s / 200) AS n WHERE tenant_id = %(origin)s
""",
    """
INSERT INTO definitions (tenant_id, name, version, description, definition, uses, sha256,
    size_bytes, created_at, kind)
SELECT tenant_id, name, version + n, description, definition, uses, sha256, size_bytes,
    created_at, kind
FROM definitions, generate_series(1, 10) AS n
WHERE tenant_id = %(large)s AND name IN (%(agent)s, %(graph)s)
""",
    """
INSERT INTO audit (tenant_id, at, action, target, actor, actor_tenant, request_id)
SELECT growth.tenant(n, %(every)s),
    now() - make_interval(secs => %(seconds)s::float8 * n / (%(size)s / 5)),
    action, target, actor, actor_tenant, request_id
FROM generate_series(1, %(size)s / 5) AS n, (SELECT * FROM audit LIMIT 1) AS one
""",
    """
INSERT INTO schedules (tenant_id, name, cron, timezone, catch_up, max_catch_up, overlap, paused,
    sent, request, request_hash, metadata, next_at)
SELECT growth.tenant(n + 1, %(every)s), name || '-' || n, cron, timezone, catch_up, max_catch_up,
    overlap, paused, sent, request, request_hash, metadata, next_at
FROM generate_series(1, %(size)s / 100) AS n, schedules WHERE tenant_id = %(origin)s
""",
    """
INSERT INTO procrastinate_jobs (queue_name, task_name, queueing_lock, args, scheduled_at)
SELECT j.queue_name, j.task_name, 'schedule/' || tenant_id || '/' || name || '/'
    || extract(epoch FROM next_at)::bigint,
    jsonb_build_object('tenant', tenant_id, 'name', name), next_at
FROM schedules, growth.procrastinate_jobs j WHERE j.queue_name = 'schedules' ON CONFLICT DO NOTHING
""",
    """
INSERT INTO stored (tenant_id, part, bytes, definitions, threads)
SELECT tenant_id, 0, sum(bytes), 0, sum(threads) FROM (
    SELECT tenant_id, sum(bytes) AS bytes, 0 AS threads FROM stored_runs GROUP BY tenant_id
    UNION ALL SELECT tenant_id, 0, count(*) FROM threads GROUP BY tenant_id
) AS each WHERE tenant_id <> %(origin)s GROUP BY tenant_id
""",
)
"""Statements after all batches; triggers are enabled."""

_SUMS: Final = {
    "caseworker_sum_costs(integer)": "SELECT caseworker_sum_costs(100000)",
    "caseworker_await_claims()": "SELECT caseworker_await_claims()",
}
"""Functions of the schema that complete what triggers keep. They are called until they do not
return true, if they exist."""


Serve = Callable[[str, Mapping[str, str]], AbstractAsyncContextManager[str]]
"""Runs a service with a database URL and settings during a block; yields its address."""


def current(url: str, settings: Mapping[str, str]) -> AbstractAsyncContextManager[str]:
    """Run the service of this checkout."""
    return service(url, settings=settings)


async def filled_database(
    server: str, name: str, size: int, *, serve: Serve = current, revision: str = "head"
) -> str:
    """Return the URL of a database with about ``size`` runs of 7 calls and 24 events each.

    It is created and filled on first use, with the schema at ``revision``, which the service of
    ``serve`` must support.
    """
    with psycopg.connect(server, autocommit=True) as connection:
        listed = "SELECT FROM pg_database WHERE datname = %s"
        exists = connection.execute(listed, [name]).fetchone() is not None
    url = make_url(server).set(database=name).render_as_string(hide_password=False)
    if exists:
        with psycopg.connect(url) as connection:
            done = connection.execute("SELECT to_regclass('growth.filled')").fetchone()
        if done != (None,):
            upgrade(url, revision)
            return url
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE {}").format(sql.Identifier(name)))
    another_database(server, name)
    upgrade(url, revision)
    async with models() as asked:
        settings = {**asking(asked), "AUTH_BOOTSTRAP_KEY": BOOTSTRAP}
        async with serve(url, settings) as address:
            originals = await make_originals(address, BOOTSTRAP)
    await asyncio.to_thread(_copy_all, url, originals, size)
    return url


def _copy_all(url: str, originals: Sequence[Original], size: int) -> None:
    values = {
        "every": max(2, size // SMALL_RUNS),
        "size": size,
        "seconds": DAYS * 86_400,
        "origin": TENANT,
        "large": LARGE,
        "agent": AGENT,
        "graph": GRAPH,
    }
    parts = -(-size // AT_ONCE)
    with psycopg.connect(url, autocommit=True) as connection, _bulk(connection):
        connection.execute(_PREPARE)
        _note(connection, originals, size)
        (now,) = connection.execute("SELECT now()").fetchone() or (None,)
        statements: list[sql.SQL | sql.Composed] = [*_copies(connection), *map(sql.SQL, _ADD)]
        shared = {**values, "parts": parts, "now": now}
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            for _ in pool.map(
                lambda part: _copy_part(url, statements, {**shared, "part": part}), range(parts)
            ):
                pass
        for statement in _FINALLY:
            connection.execute(statement, values)
        for function, statement in _SUMS.items():
            exists = connection.execute("SELECT to_regprocedure(%s)", [function]).fetchone()
            while exists != (None,) and connection.execute(statement).fetchone() == (True,):
                pass
        connection.execute("VACUUM ANALYZE")
        connection.execute("CREATE TABLE growth.filled AS SELECT now() AS at")
        connection.execute("CHECKPOINT")


def _copy_part(
    url: str, statements: Sequence[sql.SQL | sql.Composed], values: Mapping[str, object]
) -> None:
    with psycopg.connect(url) as connection:
        connection.execute("SET synchronous_commit = off")
        connection.execute("SET work_mem = '256MB'")
        connection.execute("SET session_replication_role = replica")
        connection.execute(_BATCH, values)
        for statement in statements:
            connection.execute(statement)


@contextmanager
def _bulk(connection: psycopg.Connection) -> Iterator[None]:
    """Change settings of the server so that a large load is fast."""
    settings = {"max_wal_size": "8GB", "autovacuum": "off", "checkpoint_timeout": "30min"}
    for name, value in settings.items():
        connection.execute(f"ALTER SYSTEM SET {name} = '{value}'")
    connection.execute("SELECT pg_reload_conf()")
    connection.execute("SET maintenance_work_mem = '512MB'")
    try:
        yield
    finally:
        for name in settings:
            connection.execute(f"ALTER SYSTEM RESET {name}")
        connection.execute("SELECT pg_reload_conf()")


def _note(connection: psycopg.Connection, originals: Sequence[Original], size: int) -> None:
    first = 0
    for original in originals:
        copies = max(1, round(size * original.share / len(original.run_ids)))
        for run_id in original.run_ids:
            connection.execute(
                "INSERT INTO growth.originals SELECT %s, run_id, created_at, %s, %s, %s FROM runs "
                "WHERE tenant_id = %s AND run_id = %s",
                (original.name, original.thread_id, copies, first, TENANT, run_id),
            )
        first += copies


def _copies(connection: psycopg.Connection) -> Iterator[sql.Composed]:
    """Yield a statement for each table with rows of runs or of threads."""
    connection.execute("CREATE TABLE growth.procrastinate_jobs AS TABLE procrastinate_jobs")
    for table, columns, times, counters in connection.execute(TABLES).fetchall():
        name = sql.Identifier(table)
        # Joins with the tables themselves would get slower with each batch.
        connection.execute(sql.SQL("CREATE TABLE growth.{0} AS TABLE {0}").format(name))
        if "thread_id" in columns:
            rows = "c.leads AND t.thread_id = c.old_thread"
        elif "run_id" in columns:
            rows = "t.run_id = c.old_id"
        else:
            continue
        yield sql.SQL(
            "INSERT INTO {table} ({columns}) SELECT {values} FROM batch c JOIN growth.{table} t "
            "ON t.tenant_id = {tenant} AND {rows} {order}"
        ).format(
            table=name,
            columns=sql.SQL(", ").join(map(sql.Identifier, columns)),
            values=sql.SQL(", ").join(
                _value(table, column, times or (), of_thread="thread_id" in columns)
                for column in columns
            ),
            tenant=sql.Literal(TENANT),
            rows=sql.SQL(rows),
            # Messages of a thread are numbered in the order in which they are inserted.
            order=sql.SQL("ORDER BY c.number, t.{}").format(sql.Identifier(counters[0]))
            if counters
            else sql.SQL(""),
        )


def _value(table: str, name: str, times: Sequence[str], *, of_thread: bool) -> sql.Composable:
    run = "c.new_id"
    if of_thread:
        run = (
            "(SELECT new_id FROM batch b WHERE b.name = c.name AND b.number = c.number "
            "AND b.old_id = t.run_id)"
        )
    fixed = {"tenant_id": "c.tenant_id", "run_id": run, "thread_id": "c.new_thread"}
    value = _VALUES.get((table, name)) or fixed.get(name)
    if value is not None:
        return sql.SQL(value)
    own = sql.SQL("t.{}").format(sql.Identifier(name))
    return own + sql.SQL(" + c.shift") if name in times else own
