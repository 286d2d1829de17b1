"""The schema: made and undone by migrations, and equal to the tables in the code."""

import asyncio
import gzip
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine
from sqlalchemy.engine import make_url

from caseworker.platform.postgres.engines import open_engines
from caseworker.platform.postgres.schema_version import (
    TableLockedError,
    UnknownRevisionError,
    downgrade,
    is_current,
    is_served_by,
    our_revisions,
    upgrade,
)
from caseworker.runs.postgres.tables import metadata
from tests.support.database import TestServer
from tests.support.limits import pool_sizes
from tests.support.pages import ROOT
from tests.support.processes import run_caseworker
from tests.support.schema import EXPECTED, revisions, schema_of
from tests.support.stores import eventually, open_oracle

OBJECTS = """
SELECT 'relation ' || relname || ' ' || relkind::text FROM pg_class
    WHERE relnamespace = 'public'::regnamespace
UNION ALL SELECT 'function ' || oid::regprocedure::text FROM pg_proc
    WHERE pronamespace = 'public'::regnamespace
UNION ALL SELECT 'type ' || typname FROM pg_type WHERE typnamespace = 'public'::regnamespace
UNION ALL SELECT 'trigger ' || tgname FROM pg_trigger WHERE NOT tgisinternal
UNION ALL SELECT 'extension ' || extname FROM pg_extension
ORDER BY 1
"""

SHAPES = """
SELECT conrelid::regclass::text, pg_get_constraintdef(oid)
    FROM pg_constraint WHERE conrelid::regclass::text = ANY(%(tables)s)
UNION ALL SELECT tablename, indexdef FROM pg_indexes WHERE tablename = ANY(%(tables)s)
UNION ALL SELECT table_name, concat_ws(' ', column_name, data_type, is_nullable, column_default)
    FROM information_schema.columns WHERE table_name = ANY(%(tables)s)
UNION ALL SELECT oid::regprocedure::text, pg_get_functiondef(oid) FROM pg_proc
    WHERE pronamespace = 'public'::regnamespace AND prokind = 'f'
UNION ALL SELECT viewname, definition FROM pg_views WHERE schemaname = 'public'
ORDER BY 1, 2
"""

ALEMBIC_S_OWN = "alembic_version"

BEFORE = "20261126_1710"
"""The revision before the one that changes ``runs``."""

BEFORE_QUOTAS = "20261126_1730"
"""The revision before the one that changes ``quotas``."""

BEFORE_INDEXES = "20261130_1320"
"""The revision before the one that builds indexes concurrently."""

DUMPED = Path(__file__).parents[2] / "data" / "before_baseline.sql.gz"
"""A pg_dump of a database made by the revisions that the baseline replaces."""


def objects(url: str) -> set[str]:
    """Return all objects that a database did not have at its creation."""
    with psycopg.connect(url) as connection:
        found = {row[0] for row in connection.execute(OBJECTS)}
    return {name for name in found if ALEMBIC_S_OWN not in name}


def shapes(url: str) -> list[tuple[str, str]]:
    """Return the columns, constraints and indexes of our tables, and the text of all functions."""
    with psycopg.connect(url) as connection:
        found = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'")
        tables = [name for (name,) in found if name != ALEMBIC_S_OWN]
        return connection.execute(SHAPES, {"tables": tables}).fetchall()


@pytest.fixture
def empty_url(postgres: TestServer) -> Iterator[str]:
    with postgres.empty_database() as url:
        yield url


def test_revisions_are_known_by_the_names_of_their_files() -> None:
    """The last file name is the newest revision."""
    script = ScriptDirectory(str(files("migrations")))
    known = {each.revision for each in script.walk_revisions()}

    assert our_revisions() == known
    assert script.get_heads() == [max(known)]


@pytest.mark.guarantee(16)
def test_every_revision_can_be_undone_and_done_again(empty_url: str) -> None:
    """A downgrade restores the earlier objects, and a second upgrade equals the first one."""
    before, bases = objects(empty_url), ["base", *revisions()]
    seen = [before]
    for base, revision in itertools.pairwise(bases):
        shape = shapes(empty_url)
        upgrade(empty_url, revision)
        after, changed = objects(empty_url), shapes(empty_url)
        downgrade(empty_url, base)
        assert (objects(empty_url), shapes(empty_url)) == (seen[-1], shape), revision
        upgrade(empty_url, revision)
        assert (objects(empty_url), shapes(empty_url)) == (after, changed)
        assert after > seen[-1] or changed != shape
        seen.append(after)
    downgrade(empty_url, "base")

    assert objects(empty_url) == before
    assert len(seen) == 1 + len(revisions())


def test_the_tables_in_the_code_are_those_of_the_migrations(database_url: str) -> None:
    """The check covers every table and column, with type and nullability."""
    engine = create_engine(make_url(database_url).set(drivername="postgresql+psycopg"))
    with engine.connect() as connection:
        names: dict[str, object] = {
            "include_name": lambda name, kind, _: kind != "table" or name in metadata.tables,
            "include_object": lambda _, __, kind, ___, ____: kind in ("table", "column"),
        }
        differences = compare_metadata(MigrationContext.configure(connection, opts=names), metadata)
    engine.dispose()

    assert differences == []


def test_the_migrations_make_what_is_written_down_and_nothing_else(database_url: str) -> None:
    """Tables, indexes, constraints, triggers, functions, policies and table settings match.

    After a migration run ``python -m tests.support.schema`` and review the changes.
    """
    assert schema_of(database_url) == EXPECTED.read_text().splitlines()


@pytest.mark.parametrize(
    "more",
    [
        "CREATE TABLE surplus ()",
        "CREATE INDEX surplus ON runs (created_at, status)",
        "ALTER TABLE runs ADD CONSTRAINT surplus CHECK (fence < 7)",
        "CREATE TRIGGER surplus BEFORE DELETE ON runs EXECUTE FUNCTION"
        " suppress_redundant_updates_trigger()",
        "CREATE FUNCTION surplus() RETURNS integer LANGUAGE sql RETURN 1",
        "ALTER TABLE calls RESET (autovacuum_vacuum_scale_factor)",
        "ALTER TABLE runs NO FORCE ROW LEVEL SECURITY",
        "DROP POLICY own_tenant ON runs",
    ],
)
def test_what_is_not_written_down_is_seen(database_url: str, more: str) -> None:
    """The check covers every kind of object."""
    with psycopg.connect(database_url) as connection:
        connection.execute(more.encode())

    assert schema_of(database_url) != EXPECTED.read_text().splitlines()


@pytest.mark.guarantee(16)
def test_a_database_from_before_the_baseline_is_taken_over(empty_url: str) -> None:
    """The database is at the last revision before the baseline, and its row of a run stays."""
    with psycopg.connect(empty_url) as connection:
        connection.execute(gzip.decompress(DUMPED.read_bytes()))
        connection.execute("SET search_path = public")
        connection.execute("INSERT INTO runs (tenant_id, run_id) VALUES ('default', 'kept')")
    upgrade(empty_url)

    assert schema_of(empty_url) == EXPECTED.read_text().splitlines()
    with psycopg.connect(empty_url) as connection:
        assert connection.execute("SELECT run_id FROM runs").fetchall() == [("kept",)]


@pytest.mark.parametrize("revision", ["20261123_0800", "29990101_0000"])
def test_an_unknown_revision_is_refused(database_url: str, revision: str) -> None:
    """An unknown revision may come from an older development version or from a newer release."""
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE alembic_version SET version_num = %s", [revision])

    is_old = revision < BEFORE
    way_out = "first migrate it to 20261125_0300" if is_old else "use the release that"
    expected = f"at revision {revision}, .*{way_out}"
    with pytest.raises(UnknownRevisionError, match=expected):
        upgrade(database_url)
    if is_old:  # an upgrade is no way out
        with pytest.raises(UnknownRevisionError, match=expected):
            is_served_by(database_url)
    else:
        assert is_served_by(database_url)


@pytest.mark.parametrize("command", ["serve", "worker", "keys list", "db upgrade"])
def test_a_schema_that_is_too_old_is_named_with_what_works(database_url: str, command: str) -> None:
    """No command advises an upgrade that this release cannot do."""
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '20261123_0800'")

    done = run_caseworker(*command.split(), env={"DATABASE_URL": database_url, "SERVER_PORT": "0"})

    [line] = [line for line in done.stderr.splitlines() if not line.startswith("{")]
    assert done.returncode == 2
    assert "first migrate it to 20261125_0300 with an older release" in line
    assert "db upgrade" not in line


@pytest.mark.parametrize(
    ("revision", "said"),
    [
        (None, "is empty. Run `caseworker db upgrade`"),
        ("20261123_0800", "first migrate it to 20261125_0300 with an older release"),
        (BEFORE, "is outdated. Run `caseworker db upgrade`"),
        (max(our_revisions()), "is up to date"),
        ("29990101_0000", "A newer release has migrated the database"),
    ],
)
def test_the_current_revision_is_shown_with_what_to_do(
    empty_url: str, revision: str | None, said: str
) -> None:
    """The advice is right for each state of a database."""
    if revision is not None:
        upgrade(empty_url, BEFORE)
        with psycopg.connect(empty_url) as connection:
            connection.execute("UPDATE alembic_version SET version_num = %s", [revision])

    done = run_caseworker("db", "current", env={"DATABASE_URL": empty_url})
    shown = run_caseworker("db", "current", "--json", env={"DATABASE_URL": empty_url})

    assert (done.returncode, shown.returncode) == (0, 0), done.stderr
    assert done.stdout.startswith(f"{revision or 'none'}  (newest of this release: ")
    assert said in done.stdout
    assert json.loads(shown.stdout)["revision"] == revision


@pytest.mark.parametrize(
    "arguments", ["current", "downgrade -1", "upgrade head", "upgrade head --sql"]
)
def test_the_program_alembic_names_the_commands_that_work(arguments: str) -> None:
    """It is found in the environment of the service, but knows no database."""
    command = [sys.executable, "-m", "alembic", *arguments.split()]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode != 0
    assert "run `caseworker db current` or `caseworker db upgrade`" in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_the_command_refuses_an_unknown_revision_in_one_line(database_url: str) -> None:
    """The command prints the revision without a traceback."""
    with psycopg.connect(database_url) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '29990101_0000'")

    done = _db_upgrade(database_url)

    assert done.returncode != 0
    assert "at revision 29990101_0000, which is unknown to this release" in done.stderr
    assert len([line for line in done.stderr.splitlines() if not line.startswith("{")]) == 1


@pytest.mark.guarantee(16)
def test_a_migration_gives_up_on_a_table_that_somebody_holds(empty_url: str) -> None:
    """The migration fails within seconds with one line, changes nothing, and can be repeated."""
    upgrade(empty_url, BEFORE)
    before = (objects(empty_url), shapes(empty_url))
    with psycopg.connect(empty_url) as holder:
        holder.execute("LOCK TABLE runs IN ROW EXCLUSIVE MODE")
        done = _db_upgrade(empty_url)
        assert done.returncode != 0
        assert "timed out waiting for a locked table and changed nothing" in done.stderr
        assert len([line for line in done.stderr.splitlines() if not line.startswith("{")]) == 1
        assert (objects(empty_url), shapes(empty_url)) == before

    upgrade(empty_url)
    assert is_served_by(empty_url)


async def test_indexes_are_built_while_runs_are_written(empty_url: str) -> None:
    """The build waits for an older transaction, and new writes do not wait for the build."""
    await asyncio.to_thread(upgrade, empty_url, BEFORE_INDEXES)
    insert = "INSERT INTO runs (tenant_id, run_id) VALUES ('default', %s)"
    waiting = """SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
        AND query LIKE 'CREATE INDEX CONCURRENTLY%%' AND wait_event_type = 'Lock')"""
    async with open_oracle(empty_url) as oracle:
        with psycopg.connect(empty_url) as writer:
            writer.execute(insert, ["before"])
            upgrading = asyncio.create_task(asyncio.to_thread(upgrade, empty_url))
            await eventually(lambda: oracle.value(waiting))
            await oracle.rows("SET lock_timeout = '5s'")
            await oracle.rows(insert, "meanwhile")
            writer.commit()
        await upgrading

    assert schema_of(empty_url) == EXPECTED.read_text().splitlines()


def test_an_interrupted_build_of_indexes_is_repeated(empty_url: str) -> None:
    """An index that an interrupted upgrade left behind is replaced, because it may be invalid."""
    upgrade(empty_url, BEFORE_INDEXES)
    with psycopg.connect(empty_url) as connection:
        connection.execute("CREATE INDEX runs_by_terms ON runs (run_id)")
        connection.execute("DROP INDEX runs_by_kind")
        connection.execute("ALTER TABLE approvals ADD COLUMN run_ended boolean")
    upgrade(empty_url)

    assert schema_of(empty_url) == EXPECTED.read_text().splitlines()


def test_an_interrupted_build_of_an_index_is_repeated(empty_url: str) -> None:
    """The index of the first attempt may be invalid, so it is built again."""
    upgrade(empty_url, "20261130_1350")
    with psycopg.connect(empty_url) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '20261130_1340'")
    upgrade(empty_url)

    assert schema_of(empty_url) == EXPECTED.read_text().splitlines()


def test_each_revision_is_a_transaction_of_its_own(empty_url: str) -> None:
    """Revisions before the failed one stay applied, and their locks are released."""
    upgrade(empty_url, BEFORE)
    with psycopg.connect(empty_url) as holder:
        holder.execute("LOCK TABLE quotas IN ACCESS SHARE MODE")
        with pytest.raises(TableLockedError):
            upgrade(empty_url)
        at = holder.execute("SELECT version_num FROM alembic_version").fetchone()

    assert at == (BEFORE_QUOTAS,)


def _db_upgrade(url: str) -> "subprocess.CompletedProcess[str]":
    return run_caseworker("db", "upgrade", env={"DATABASE_URL": url})


async def test_processes_that_migrate_at_once_wait_for_one_another(empty_url: str) -> None:
    """Afterwards each of them finds the newest revision."""
    upgrading = [asyncio.to_thread(_db_upgrade, empty_url) for _ in range(2)]
    codes = [(await ended).returncode for ended in asyncio.as_completed(upgrading)]

    assert codes == [0, 0]
    assert any("procrastinate_jobs" in name for name in objects(empty_url))


async def test_a_database_that_is_behind_is_noticed(empty_url: str) -> None:
    """The check distinguishes an empty, an outdated and a current database."""
    engines = open_engines(empty_url, pool_sizes())
    standing = []
    for revision in ("base", *revisions()[-2:]):
        if revision != "base":
            await asyncio.to_thread(upgrade, empty_url, revision)
        standing.append(await is_current(engines.control))
    await engines.dispose()

    assert standing == [False, False, True]
