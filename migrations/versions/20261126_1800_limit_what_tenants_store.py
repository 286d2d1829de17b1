"""Count the storage of tenants, and limit it.

Triggers count, so that all writes and deletes are included, even those by processes of the previous
release. Each database session updates its own row in ``stored``. Sessions therefore never wait for
each other, and the sum over the rows of a tenant is exact. A sweep merges the rows.

Unfinished runs from before this revision are counted when they end; finished ones are never
counted.

Writes to ``artifacts``, ``definitions``, ``threads``, ``messages`` and ``schedules`` are blocked
while the existing rows are counted.

Revision: 20261126_1800
Revises: 20261126_1730
"""

from alembic import op

revision = "20261126_1800"
down_revision = "20261126_1730"
branch_labels = None
depends_on = None

TABLES = (
    """CREATE TABLE stored (
        tenant_id text NOT NULL,
        part bigint NOT NULL,
        bytes bigint NOT NULL,
        definitions bigint NOT NULL,
        threads bigint NOT NULL,
        PRIMARY KEY (tenant_id, part)
    ) WITH (fillfactor = 50)""",
    """CREATE TABLE stored_runs (
        tenant_id text NOT NULL,
        run_id text NOT NULL,
        bytes bigint NOT NULL,
        PRIMARY KEY (tenant_id, run_id)
    ) WITH (fillfactor = 90)""",
    """ALTER TABLE quotas
        ADD COLUMN max_stored_bytes bigint,
        ADD COLUMN max_definitions integer,
        ADD COLUMN max_threads integer""",
)

CHANGES = {"INSERT": "NEW TABLE AS added", "DELETE": "OLD TABLE AS removed"}
CHANGES["UPDATE"] = f"{CHANGES['DELETE']} {CHANGES['INSERT']}"

COUNTED = {
    "stored_runs": ("bytes", "0", "0", "INSERT UPDATE DELETE"),
    "artifacts": ("size_bytes", "0", "0", "INSERT UPDATE DELETE"),
    "definitions": (
        "CASE WHEN definition IS NULL THEN 0 ELSE size_bytes END",
        "(definition IS NOT NULL)::integer",
        "0",
        "INSERT UPDATE DELETE",
    ),
    "threads": (
        "octet_length(concat(definition, inputs, tools, title, metadata))",
        "0",
        "1",
        "INSERT DELETE",
    ),
    "messages": ("coalesce(octet_length(content), 0)", "0", "0", "INSERT DELETE"),
    "schedules": (
        "octet_length(concat(request, metadata, sent))",
        "0",
        "0",
        "INSERT UPDATE DELETE",
    ),
}
"""For each table, SQL for the bytes, definitions and threads of a row; the counted operations."""

ADD = """INSERT INTO stored AS s (tenant_id, part, bytes, definitions, threads)
        SELECT tenant_id, pg_backend_pid(), {sign}sum({bytes}), {sign}sum({definitions}),
            {sign}sum({threads}) FROM {rows} GROUP BY tenant_id
        ON CONFLICT (tenant_id, part) DO UPDATE SET bytes = s.bytes + excluded.bytes,
            definitions = s.definitions + excluded.definitions,
            threads = s.threads + excluded.threads;"""

COUNT = """
CREATE FUNCTION caseworker_count_{table}() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'DELETE' THEN
        {added}
    END IF;
    IF TG_OP <> 'INSERT' THEN
        {removed}
    END IF;
    RETURN NULL;
END $$
"""

COUNT_BEFORE = """
INSERT INTO stored AS s (tenant_id, part, bytes, definitions, threads)
SELECT tenant_id, 0, sum({bytes}), sum({definitions}), sum({threads}) FROM {table}
GROUP BY tenant_id
ON CONFLICT (tenant_id, part) DO UPDATE SET bytes = s.bytes + excluded.bytes,
    definitions = s.definitions + excluded.definitions, threads = s.threads + excluded.threads
"""

MERGE = """
CREATE FUNCTION caseworker_merge_stored() RETURNS void LANGUAGE sql AS $$
    WITH merged AS (
        DELETE FROM stored WHERE (tenant_id, part) IN (
            SELECT tenant_id, part FROM stored WHERE part <> 0 FOR UPDATE SKIP LOCKED
        ) RETURNING *
    )
    INSERT INTO stored AS s (tenant_id, part, bytes, definitions, threads)
    SELECT tenant_id, 0, sum(bytes), sum(definitions), sum(threads) FROM merged
    GROUP BY tenant_id ORDER BY tenant_id
    ON CONFLICT (tenant_id, part) DO UPDATE SET bytes = s.bytes + excluded.bytes,
        definitions = s.definitions + excluded.definitions, threads = s.threads + excluded.threads
$$
"""

OF_RUNS = """
CREATE FUNCTION caseworker_count_runs() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        INSERT INTO stored_runs (tenant_id, run_id, bytes)
        SELECT tenant_id, run_id,
            pg_column_size(request) + coalesce(pg_column_size(metadata), 0)
        FROM added WHERE request IS NOT NULL
        ON CONFLICT (tenant_id, run_id) DO UPDATE SET bytes = excluded.bytes;
    ELSE
        DELETE FROM stored_runs s USING removed
        WHERE s.tenant_id = removed.tenant_id AND s.run_id = removed.run_id;
    END IF;
    RETURN NULL;
END $$
"""


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for statement in TABLES:
        op.execute(statement)
    for table, (size, definitions, threads, changes) in COUNTED.items():
        counted = {"bytes": size, "definitions": definitions, "threads": threads}
        added = ADD.format(rows="added", sign="", **counted)
        removed = ADD.format(rows="removed", sign="-", **counted)
        op.execute(COUNT.format(table=table, added=added, removed=removed))
        for change in changes.split():
            _trigger(table, change)
        op.execute(COUNT_BEFORE.format(table=table, **counted))
    op.execute(OF_RUNS)
    op.execute(MERGE)
    for change in ("INSERT", "DELETE"):
        _trigger("runs", change)
    op.execute("SELECT caseworker_keep_tenants_apart()")


def _trigger(table: str, change: str) -> None:
    name = f"caseworker_counts_{change.lower()}"
    op.execute(
        f"CREATE TRIGGER {name} AFTER {change} ON {table} REFERENCING {CHANGES[change]}"
        f" FOR EACH STATEMENT EXECUTE FUNCTION caseworker_count_{table}()"
    )


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for table in ("runs", *COUNTED):
        op.execute(f"DROP FUNCTION caseworker_count_{table}() CASCADE")
    op.execute("DROP FUNCTION caseworker_merge_stored()")
    op.execute("DROP TABLE stored_runs")
    op.execute("DROP TABLE stored")
    op.execute(
        "ALTER TABLE quotas DROP COLUMN max_stored_bytes, DROP COLUMN max_definitions,"
        " DROP COLUMN max_threads"
    )
