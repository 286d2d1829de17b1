"""A row of each of two tenants in every table."""

import psycopg
from psycopg import sql

from caseworker.runs.postgres.tables import metadata

KEPT_APART = sorted(
    {str(table.name) for table in metadata.tables.values() if "tenant_id" in table.columns}
    | {
        "accounts",
        "audit",
        "provider_turns",
        "quotas",
        "quota_days",
        "quota_rates",
        "stored",
        "waiting_tenants",
        "webhook_secrets",
    }
)
"""Tables with a tenant, some of which only SQL statements name."""

OTHERS = "ab"

VALUES = {
    "integer": "1",
    "bigint": "1",
    "double precision": "1",
    "numeric": "1",
    "boolean": "true",
    "json": "{}",
    "jsonb": "{}",
    "bytea": "x",
    "ARRAY": "{}",
    "timestamp with time zone": "2026-01-01T00:00:00Z",
    "date": "2026-01-01",
}
"""Values for required columns by type; text columns get the name of the tenant."""


def rows_of_two_tenants(connection: psycopg.Connection) -> None:
    """Insert a row of each tenant into every table, with its constraints dropped."""
    connection.execute("SET session_replication_role = replica")
    for table in KEPT_APART:
        checks = "SELECT conname FROM pg_constraint WHERE contype = 'c' AND conrelid = %s::regclass"
        for (name,) in connection.execute(checks, (table,)).fetchall():
            drop = sql.SQL("ALTER TABLE {} DROP CONSTRAINT {}")
            connection.execute(drop.format(sql.Identifier(table), sql.Identifier(name)))
        needed = connection.execute(
            "SELECT column_name, data_type FROM information_schema.columns WHERE table_name = %s"
            " AND table_schema = 'public' AND is_nullable = 'NO' AND column_default IS NULL"
            " AND is_identity = 'NO'",
            (table,),
        ).fetchall()
        for tenant in OTHERS:
            insert = sql.SQL("INSERT INTO {} ({}) VALUES ({})").format(
                sql.Identifier(table),
                sql.SQL(", ").join(sql.Identifier(name) for name, _ in needed),
                sql.SQL(", ").join(sql.Literal(VALUES.get(kind, tenant)) for _, kind in needed),
            )
            connection.execute(insert)
