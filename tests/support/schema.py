"""The schema after all migrations, as sorted lines.

``python -m tests.support.schema`` rewrites ``tests/data/schema.txt``. The diff of that file shows
reviewers the effect of a migration.
"""

import tempfile
from importlib.resources import files
from pathlib import Path

import psycopg
from alembic.script import ScriptDirectory

from tests.support.database import open_server

EXPECTED = Path(__file__).parents[1] / "data" / "schema.txt"

_LINES = """
WITH ours AS (SELECT 'public'::regnamespace AS schema)
SELECT concat_ws(' ', 'relation', relname, relkind, relpersistence,
    array_to_string(reloptions, ','),
    CASE WHEN relrowsecurity THEN 'row security' END,
    CASE WHEN relforcerowsecurity THEN 'forced' END)
    FROM pg_class, ours WHERE relnamespace = schema AND relkind <> 'i'
UNION ALL SELECT concat_ws(' ', 'view', oid::regclass, md5(pg_get_viewdef(oid)))
    FROM pg_class, ours WHERE relnamespace = schema AND relkind = 'v'
UNION ALL SELECT concat_ws(' ', 'column', attrelid::regclass, attname,
    format_type(atttypid, atttypmod), CASE WHEN attnotnull THEN 'not null' END,
    CASE WHEN attstorage <> typstorage THEN 'storage ' || attstorage::text END,
    pg_get_expr(adbin, adrelid))
    FROM pg_attribute JOIN pg_class ON pg_class.oid = attrelid
    JOIN pg_type ON pg_type.oid = atttypid
    LEFT JOIN pg_attrdef ON adrelid = attrelid AND adnum = attnum, ours
    WHERE relnamespace = schema AND attnum > 0 AND NOT attisdropped AND relkind NOT IN ('i', 'S')
UNION ALL SELECT 'index ' || indexdef FROM pg_indexes WHERE schemaname = 'public'
UNION ALL SELECT concat_ws(' ', 'constraint', conrelid::regclass, conname,
    pg_get_constraintdef(oid), CASE WHEN NOT convalidated THEN 'not valid' END)
    FROM pg_constraint, ours WHERE connamespace = schema AND contype <> 'n'
UNION ALL SELECT concat_ws(' ', 'trigger', tgenabled, pg_get_triggerdef(oid))
    FROM pg_trigger WHERE NOT tgisinternal
UNION ALL SELECT concat_ws(' ', 'function', oid::regprocedure, provolatile,
    CASE WHEN prosecdef THEN 'security definer' END, array_to_string(proconfig, ','), md5(prosrc))
    FROM pg_proc, ours WHERE pronamespace = schema
UNION ALL SELECT concat_ws(' ', 'type', typname, (
    SELECT string_agg(enumlabel, ',' ORDER BY enumsortorder) FROM pg_enum
    WHERE enumtypid = pg_type.oid
    )) FROM pg_type, ours WHERE typnamespace = schema AND typtype IN ('e', 'd')
UNION ALL SELECT concat_ws(' ', 'policy', tablename, policyname, permissive,
    replace(roles::text, current_user, 'owner'), cmd, qual, with_check) FROM pg_policies
UNION ALL SELECT 'extension ' || extname FROM pg_extension
UNION ALL SELECT concat_ws(' ', 'schema', nspname) FROM pg_namespace WHERE nspname !~ '^pg_'
"""
"""One line per object.

Nullability is part of the column, because only newer servers name such constraints. Bodies of
functions and views are digests.
"""


def schema_of(url: str) -> list[str]:
    """Return the objects of a database, one line each."""
    with psycopg.connect(url) as connection:
        found = [" ".join(line.split()) for (line,) in connection.execute(_LINES)]
    return sorted(found)


if __name__ == "__main__":
    with (
        tempfile.TemporaryDirectory(prefix="caseworker-pg-") as folder,
        open_server(Path(folder) / "data", synced=False) as server,
        server.database() as url,
    ):
        EXPECTED.write_text("\n".join(schema_of(url)) + "\n")


def revisions() -> list[str]:
    """Return all revisions, the oldest first."""
    scripts = ScriptDirectory(str(files("migrations")))
    return [script.revision for script in reversed(list(scripts.walk_revisions()))]
