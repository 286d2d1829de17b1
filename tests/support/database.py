"""Postgres for tests: embedded unless DATABASE_URL names a server; each test has a database.

Copying a template and dropping the copy takes longer than most tests. So a database of an embedded
server is emptied after a test and reused, unless the test changed more than rows.
"""

import itertools
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg import sql
from sqlalchemy.engine import make_url

from caseworker.core.trace.execution_graph import ExecutionGraph
from caseworker.platform.postgres.connections import driver_url
from caseworker.platform.postgres.embedded import EmbeddedPostgres
from caseworker.platform.postgres.schema_version import upgrade
from tests.support.fault_proxy import FaultProxy, Upstream
from tests.support.graph_invariants import violations

REFUSE_ROWS = """
CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN RAISE EXCEPTION 'could not extend file: No space left' USING ERRCODE = '53100'; END $$;
DO $$ DECLARE each text; BEGIN
FOR each IN SELECT tablename FROM pg_tables WHERE schemaname = 'public' LOOP
EXECUTE 'CREATE TRIGGER refused BEFORE INSERT ON ' || each || ' EXECUTE FUNCTION refuse()';
END LOOP; END $$
"""
"""Refuse all new rows with the error of a full disk, until ``ACCEPT_ROWS``."""
ACCEPT_ROWS = "DROP FUNCTION refuse() CASCADE"


def proxied(url: str, proxy: FaultProxy) -> str:
    """Return the URL of a database through a proxy in front of its server."""
    host, port = proxy.address
    through = make_url(url).set(host=host, port=port, query={})
    return through.render_as_string(hide_password=False)


def upstream_of(url: str) -> Upstream:
    """Return the address of a database's server."""
    parsed = make_url(url)
    folder = parsed.query.get("host")
    if isinstance(folder, str):
        return Path(folder) / f".s.PGSQL.{parsed.query.get('port', 5432)}"
    return parsed.host or "localhost", parsed.port or 5432


_GRAPHS = """
SELECT run_id, array_agg(node ORDER BY seq) FROM journal JOIN runs USING (tenant_id, run_id)
WHERE finished_at IS NOT NULL
GROUP BY tenant_id, run_id
"""


def require_sound_graphs(connection: psycopg.Connection) -> None:
    """Check the ExecutionGraph of every finished run in a database, also of an earlier schema.

    Calls that a test inserts directly, to see the database refuse them, are not nodes of a graph.
    """
    exists = "SELECT to_regclass('journal') IS NOT NULL"
    if connection.execute(exists).fetchone() != (True,):
        return
    rows = connection.execute(_GRAPHS).fetchall()
    for run_id, nodes in rows:
        if all(node.get("node_id") for node in nodes):
            snapshot = ExecutionGraph.restore(run_id, nodes).snapshot()
            broken = violations(snapshot, calls_in_place=False)
            assert broken == [], f"graph of run {run_id}: {broken}"


_END_OTHERS = """
SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity
WHERE datname = current_database() AND pid <> pg_backend_pid()
"""
_EMPTY = """
DO $$
DECLARE each regclass;
BEGIN
  FOR each IN SELECT oid FROM pg_class
    WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' AND relname <> 'alembic_version'
  LOOP EXECUTE 'DELETE FROM ' || each; END LOOP;
  PERFORM setval(oid::regclass, 1, false) FROM pg_class
    WHERE relnamespace = 'public'::regnamespace AND relkind = 'S';
END $$
"""
_SHAPE = """
SELECT md5(string_agg(part, ',' ORDER BY part)) FROM (
  SELECT concat_ws(' ', oid, xmin, reltuples, relkind = 'r' AND pg_relation_size(oid) > 65536)
  FROM pg_class WHERE oid >= 16384
  UNION ALL SELECT concat_ws(' ', attrelid, attnum, xmin) FROM pg_attribute WHERE attrelid >= 16384
  UNION ALL SELECT concat_ws(' ', oid, xmin) FROM pg_proc WHERE oid >= 16384
  UNION ALL SELECT concat_ws(' ', oid, xmin) FROM pg_trigger
  UNION ALL SELECT concat_ws(' ', oid, xmin) FROM pg_constraint WHERE oid >= 16384
  UNION ALL SELECT concat_ws(' ', oid, xmin) FROM pg_policy
  UNION ALL SELECT concat_ws(' ', oid, xmin) FROM pg_namespace
  UNION ALL SELECT version_num FROM alembic_version
  UNION ALL SELECT array_to_string(setconfig, ' ') FROM pg_db_role_setting
    JOIN pg_database ON oid = setdatabase WHERE datname = current_database()
) AS parts(part)
"""
"""Everything except rows that a test may have changed: objects, statistics, sizes, settings."""


def delete_rows(connection: psycopg.Connection) -> None:
    """Delete all rows of a migrated database and restart its sequences."""
    connection.execute("SET session_replication_role = replica")  # no trigger refuses
    connection.execute(_EMPTY)


class TestServer:
    """A Postgres server with a migrated template for new databases."""

    __test__ = False

    def __init__(self, url: str) -> None:
        self._url = driver_url(url)
        self._strategy = sql.SQL("wal_log")
        self._names = (f"cw_{uuid.uuid4().hex[:12]}_{n}" for n in itertools.count())
        self._template = self.create()
        upgrade(self.url_of(self._template))
        self._shape: object = None
        self._empty: list[str] = []

    def create(self, *, template: str | None = None) -> str:
        """Create a database and return its name."""
        name = next(self._names)
        statement = sql.SQL("CREATE DATABASE {} TEMPLATE {} STRATEGY {}").format(
            sql.Identifier(name), sql.Identifier(template or "template0"), self._strategy
        )
        self._execute(statement)
        return name

    def drop(self, name: str) -> None:
        """Drop a database even if clients are connected to it."""
        self._execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))

    def url_of(self, name: str) -> str:
        """Return the URL of a database."""
        return make_url(self._url).set(database=name).render_as_string(hide_password=False)

    @contextmanager
    def database(self) -> Iterator[str]:
        """Yield the URL of an empty, migrated database.

        Runs that a test leaves in it must keep the invariants of an ExecutionGraph.
        """
        name = self._empty.pop() if self._empty else self.create(template=self._template)
        emptied = False
        try:
            yield self.url_of(name)
            with psycopg.connect(self.url_of(name), autocommit=True) as connection:
                require_sound_graphs(connection)
                emptied = self._shape is not None and self._emptied(connection)
        finally:
            if emptied:
                self._empty.append(name)
            else:
                self.drop(name)

    @contextmanager
    def empty_database(self) -> Iterator[str]:
        """Yield the URL of a new database without tables."""
        name = self.create()
        try:
            yield self.url_of(name)
        finally:
            self.drop(name)

    def do_not_sync(self) -> None:
        """Turn off disk synchronisation for the whole server."""
        for name in ("fsync", "full_page_writes"):
            self._execute(sql.SQL("ALTER SYSTEM SET {} = off").format(sql.Identifier(name)))
        self._execute(sql.SQL("SELECT pg_reload_conf()"))
        self._strategy = sql.SQL("file_copy")  # cheaper without disk synchronisation
        with psycopg.connect(self.url_of(self._template)) as connection:
            self._shape = connection.execute(_SHAPE).fetchone()

    def close(self) -> None:
        """Drop the template."""
        self.drop(self._template)

    def _emptied(self, connection: psycopg.Connection) -> bool:
        """End all other connections and delete all rows; return whether nothing else changed."""
        connection.execute(_END_OTHERS)
        delete_rows(connection)
        return connection.execute(_SHAPE).fetchone() == self._shape

    def _execute(self, statement: sql.SQL | sql.Composed) -> None:
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute(statement)


@contextmanager
def open_server(data_dir: Path, *, synced: bool = True) -> Iterator[TestServer]:
    """Return the server in DATABASE_URL, or an embedded one in ``data_dir``.

    Without ``synced`` an embedded server does not wait for the disk. A killed process still loses
    no data; only a power failure would.
    """
    url = os.environ.get("DATABASE_URL")
    embedded = None if url else EmbeddedPostgres(data_dir)
    server = TestServer(url or (embedded.start() if embedded else ""))
    if embedded and not synced:
        server.do_not_sync()
    try:
        yield server
    finally:
        server.close()
        if embedded:
            embedded.stop()
