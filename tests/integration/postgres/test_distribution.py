"""The tables can be distributed by tenant: every key and every join contains ``tenant_id``.

Distributed Postgres (Citus: ``create_distributed_table``) requires the distribution column in
unique indexes and foreign keys. A few tables belong to no tenant.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

import caseworker
from caseworker.runs.postgres.tables import metadata
from tests.support.syntax import parsed

OF_NOBODY = {
    "workers": "the processes of the service",
    "api_keys": "looked up by the id of the key, before the tenant is known",
    "provider_limits": "one budget of a model for all tenants",
    "provider_turns": "who is next at a model, among all tenants",
    "moves": "how far stored data has been moved, of all tenants",
    "alembic_version": "the revision",
}
"""Tables without a tenant, which stay on one node or are copied to all, like those of the queue."""
OF_THE_QUEUE = "procrastinate_"

UNIQUE = """
SELECT c.relname, i.indexrelid::regclass::text, ARRAY(
    SELECT a.attname::text FROM pg_attribute a
    WHERE a.attrelid = i.indrelid AND a.attnum = ANY(i.indkey)
)
FROM pg_index i JOIN pg_class c ON c.oid = i.indrelid
WHERE i.indisunique AND c.relnamespace = 'public'::regnamespace
"""

REFERENCES = """
SELECT c.relname, f.relname, ARRAY(
    SELECT (SELECT attname FROM pg_attribute WHERE attrelid = k.conrelid AND attnum = own)
        || ' = ' || (SELECT attname FROM pg_attribute WHERE attrelid = k.confrelid AND attnum = its)
    FROM unnest(k.conkey, k.confkey) AS pair (own, its)
)
FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid JOIN pg_class f ON f.oid = k.confrelid
WHERE k.contype = 'f' AND c.relnamespace = 'public'::regnamespace
"""

WRITTEN_IN_THE_DATABASE = """
SELECT prosrc FROM pg_proc WHERE proname LIKE 'caseworker_%'
UNION ALL SELECT definition FROM pg_views WHERE schemaname = 'public'
"""

_JOIN = re.compile(
    r"\bJOIN\s+(?!LATERAL)(?P<what>[\w{}]+)(?:\s+(?:AS\s+)?(?!USING|ON)\w+)?"
    r"\s+(?P<how>USING\s*\([^)]*\)|ON\s.*?)"
    r"(?=\s*(?:\b(?:JOIN|LEFT|CROSS|WHERE|GROUP|ORDER|RETURNING|FOR|LIMIT)\b|\)\s*,|;|$))",
    re.DOTALL,
)
OTHER_JOINS = {
    "procrastinate_workers": "the queue's own",
    "pg_namespace": "catalogues",
    "pg_attribute": "catalogues",
    "pg_class": "catalogues",
}


def _is_distributed(table: str) -> bool:
    return table not in OF_NOBODY and not table.startswith(OF_THE_QUEUE)


def _without_tenant(statement: str) -> list[str]:
    """Return the joins of a statement that do not include the tenant."""
    return [
        found["what"]
        for found in _JOIN.finditer(statement)
        if "tenant_id" not in found["how"] and found["what"] not in OTHER_JOINS
    ]


def _texts() -> Iterator[tuple[str, str]]:
    """Return the strings of the package by module, f-strings included."""
    for path in sorted(Path(next(iter(caseworker.__path__))).rglob("*.py")):
        for node in ast.walk(parsed(path.read_text())):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield path.name, node.value
            elif isinstance(node, ast.JoinedStr):
                yield path.name, ast.unparse(node)


def test_the_tables_in_the_code_have_the_tenant_in_their_keys() -> None:
    """The tenant is the first column, so the rows of a tenant are adjacent."""
    first = {name: next(iter(table.primary_key)).name for name, table in metadata.tables.items()}

    assert {name for name, key in first.items() if key != "tenant_id"} <= OF_NOBODY.keys()


def test_every_unique_index_and_reference_of_the_database_holds_the_tenant(
    database_url: str,
) -> None:
    """The check includes tables that only the migrations define."""
    with psycopg.connect(database_url) as connection:
        unique = connection.execute(UNIQUE).fetchall()
        references = connection.execute(REFERENCES).fetchall()
    ours = [(table, name, columns) for table, name, columns in unique if _is_distributed(table)]
    inner = [row for row in references if _is_distributed(row[0]) or _is_distributed(row[1])]

    assert {table for table, _, _ in ours} >= {"runs", "calls", "events", "messages", "quotas"}
    assert [name for _, name, columns in ours if "tenant_id" not in columns] == []
    assert len(inner) >= 5
    assert [row for row in inner if "tenant_id = tenant_id" not in row[2]] == []


def test_joins_go_by_tenant(database_url: str) -> None:
    """The check covers statements, functions and views of the service."""
    joins = [(place, found) for place, each in _texts() for found in _without_tenant(each)]
    with psycopg.connect(database_url) as connection:
        for (source,) in connection.execute(WRITTEN_IN_THE_DATABASE):
            joins += [("database", found) for found in _without_tenant(source)]

    assert joins == []
    assert sum(len(_JOIN.findall(each)) for _, each in _texts()) >= 8


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("SELECT * FROM calls JOIN runs USING (run_id)", ["runs"]),
        ("SELECT * FROM calls c LEFT JOIN runs r ON r.run_id = c.run_id WHERE 1 = 1", ["runs"]),
        ("SELECT * FROM calls JOIN runs USING (tenant_id, run_id) JOIN x ON x.a = b", ["x"]),
        ("SELECT * FROM calls c JOIN runs r ON r.tenant_id = c.tenant_id", []),
    ],
)
def test_a_join_without_the_tenant_is_found(statement: str, found: list[str]) -> None:
    """The check finds a wrong statement."""
    assert _without_tenant(statement) == found
