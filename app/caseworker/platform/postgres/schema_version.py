"""Migrate the database to the revision that this code needs, and check its current revision."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Literal

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from psycopg.errors import DeadlockDetected, LockNotAvailable
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from caseworker.platform.postgres.connections import driver_url
from caseworker.platform.postgres.engines import Pool, transaction
from caseworker.platform.postgres.locks import TRY_LOCK_MIGRATION

# Import Alembic only to migrate: a process that finds the database up to date, the usual case,
# needs 13 MB less memory.

_INSTALLED = Path(str(files("caseworker"))) / "migrations"
_SCRIPTS = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).parents[4] / "migrations"
"""Inside the package in a wheel, at the top of the repository in a checkout."""
_REVISION_CHARS = len("20261125_0300")

CONNECT_SECONDS = 10
"""Timeout for a connection, unless the URL contains ``connect_timeout``."""
RETRY_SECONDS = 0.2
"""Pause between two attempts to acquire the lock for migrations."""


class MigrationError(Exception):
    """The database cannot be migrated now; the message says how to proceed."""


class TableLockedError(MigrationError):
    """A migration failed because another transaction held a lock on a table.

    The migration timed out waiting for the lock, or the two transactions deadlocked.
    """

    def __init__(self) -> None:
        super().__init__(
            "a migration timed out waiting for a locked table and changed nothing: end the "
            "transaction that holds the lock, or wait until it ends, and migrate again"
        )


class UnknownRevisionError(MigrationError):
    """The database schema is at a revision that this release does not know.

    The message says how to proceed.
    """

    def __init__(self, revision: str) -> None:
        oldest = min(our_revisions())
        way_out = (
            f"first migrate it to {oldest} with an older release (see docs/upgrading.md)"
            if revision < oldest
            else "use the release that migrated it"
        )
        super().__init__(
            f"the database is at revision {revision}, which is unknown to this release: "
            f"{way_out}, or use an empty database"
        )


class EncodingError(MigrationError):
    """The database has an encoding in which not every text can be stored."""

    def __init__(self, name: str, encoding: str) -> None:
        super().__init__(
            f"the database {name} has the encoding {encoding}, but the service stores text of any "
            f"language: create another one with CREATE DATABASE ... ENCODING 'UTF8' TEMPLATE "
            "template0 LOCALE 'C', and use that"
        )


def upgrade(url: str, revision: str = "head") -> None:
    """Upgrade the database schema to ``revision``, by default the newest.

    An advisory lock serializes processes that start together.

    Raises:
        EncodingError: the database does not use UTF-8.
        UnknownRevisionError: the database is at a revision that this release does not know.
        TableLockedError: a table was locked; earlier revisions have been applied.
        sqlalchemy.exc.OperationalError: the database does not respond.
    """
    _migrate(url, "upgrade", revision)


def downgrade(url: str, revision: str) -> None:
    """Downgrade the database schema to ``revision``; raises the same errors as :func:`upgrade`."""
    _migrate(url, "downgrade", revision)


async def is_current(pool: Pool) -> bool:
    """Return whether this release can use the database without an upgrade.

    That is the case if its schema is at the revision that this release needs, or a later one.
    """
    async with transaction(pool) as connection:
        return await connection.run_sync(_serves)


def is_served_by(url: str) -> bool:
    """Return whether this release can use the database at ``url`` without an upgrade.

    That is the case if its schema is at the revision that this release needs, or a later one.

    Raises:
        EncodingError: the database does not use UTF-8.
        UnknownRevisionError: its schema is too old for an upgrade by this release.
        sqlalchemy.exc.OperationalError: the database does not respond.
    """
    with _connected(url) as connection:
        is_served, unknown = _serves(connection), _revisions_of(connection) - our_revisions()
    if unknown and not is_served:
        raise UnknownRevisionError(max(unknown))
    return is_served


def current_revision(url: str) -> str | None:
    """Return the revision of the schema of a database; None if the database is empty.

    Raises the same errors as :func:`upgrade`.
    """
    with _connected(url) as connection:
        return max(_revisions_of(connection), default=None)


def _migrate(url: str, command: Literal["upgrade", "downgrade"], revision: str) -> None:

    with _connected(url) as connection:
        # A session lock: it outlives the commits below and ends with the connection. Waiting for it
        # in a statement would hold a snapshot, for which a concurrent build of an index waits.
        while not connection.scalar(text(TRY_LOCK_MIGRATION)):
            connection.commit()
            time.sleep(RETRY_SECONDS)
        connection.commit()
        revisions = _revisions_of(connection)
        unknown = revisions - our_revisions()
        connection.commit()  # else one transaction would hold the locks of all revisions
        if unknown:
            raise UnknownRevisionError(max(unknown))
        if command == "upgrade" and revision == "head" and revisions == {max(our_revisions())}:
            return
        from alembic import command as commands
        from alembic.config import Config

        config = Config()
        config.set_main_option("script_location", str(_SCRIPTS))
        config.attributes["connection"] = connection
        try:
            getattr(commands, command)(config, revision)
        except OperationalError as error:
            if isinstance(error.orig, LockNotAvailable | DeadlockDetected):
                raise TableLockedError from None
            raise
        connection.commit()


def _serves(connection: Connection) -> bool:
    """Compare revisions, which sort by age; an unknown later one comes from a newer release."""
    newest, revisions = max(our_revisions()), _revisions_of(connection)
    unknown = revisions - our_revisions()
    return revisions == {newest} or (bool(unknown) and max(unknown) > newest)


def _revisions_of(connection: Connection) -> frozenset[str]:
    """Return the revisions of a database without using Alembic, which would log its connection."""
    exists = connection.scalar(text("SELECT to_regclass('alembic_version') IS NOT NULL"))
    if not exists:
        return frozenset()
    return frozenset(connection.scalars(text("SELECT version_num FROM alembic_version")))


@cache
def our_revisions() -> frozenset[str]:
    """Return all schema revisions of this release, read from the names of the migration files."""
    names = (file.name for file in (_SCRIPTS / "versions").iterdir())
    return frozenset(name[:_REVISION_CHARS] for name in names if name.endswith(".py"))


@contextmanager
def _connected(url: str) -> Iterator[Connection]:
    """Yield a connection that is closed afterwards, which also releases its advisory lock."""
    url_options = conninfo_to_dict(driver_url(url))  # only libpq parses URLs
    usual = make_conninfo(f"connect_timeout={CONNECT_SECONDS}", **url_options)

    def connect() -> psycopg.Connection:
        connection = psycopg.connect(usual, client_encoding="utf8")
        name = connection.info.dbname
        encoding = connection.info.parameter_status("server_encoding") or ""
        if encoding != "UTF8":  # SQLAlchemy could not even read the version of the server
            connection.close()
            raise EncodingError(name, encoding)
        return connection

    engine = create_engine("postgresql+psycopg://", creator=connect, poolclass=NullPool)
    with engine.connect() as connection:
        yield connection
