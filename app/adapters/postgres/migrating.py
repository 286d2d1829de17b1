"""Brings the database to the revision that this code needs, and finds out whether it is there."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from psycopg.errors import DeadlockDetected, LockNotAvailable
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from app.adapters.postgres.engines import Pool, transaction

LOCK = 0x43617365
"""The advisory lock that lets one process migrate at a time."""


class MigrationError(Exception):
    """The database cannot be migrated now; the message says what to do."""


class TableLockedError(MigrationError):
    """Somebody held a table for longer than a migration waits, or waited for it in turn."""

    def __init__(self) -> None:
        super().__init__(
            "a migration waited for a table that is locked, and changed nothing of it: end the"
            " transaction that holds it, or wait for its end, and migrate again"
        )


class UnknownRevisionError(MigrationError):
    """The database was migrated by other code than this; the message says what to do."""

    def __init__(self, revision: str) -> None:
        super().__init__(
            f"the database is at revision {revision}, which this release does not know: use the"
            " release that migrated it, or another, empty database"
        )


def upgrade(url: str, revision: str = "head") -> None:
    """Migrate up; processes that start together wait for one another.

    Raises:
        UnknownRevisionError: the database is at a revision that is none of ours.
        TableLockedError: a table was locked; the revisions before that one are done.
        sqlalchemy.exc.OperationalError: the database does not answer.
    """
    _migrate(url, command.upgrade, revision)


def downgrade(url: str, revision: str) -> None:
    """Migrate down; raises what :func:`upgrade` does."""
    _migrate(url, command.downgrade, revision)


async def is_current(pool: Pool) -> bool:
    """Return whether the database is where this code needs it, or further."""
    async with transaction(pool) as connection:
        return await connection.run_sync(_serves)


def is_served_by(url: str) -> bool:
    """Return whether the database is where this code needs it, or further.

    Raises:
        sqlalchemy.exc.OperationalError: the database does not answer.
    """
    with _connected(url) as connection:
        return _serves(connection)


def _migrate(url: str, migration: Callable[[Config, str], None], revision: str) -> None:
    with _connected(url) as connection:
        connection.execute(text("SELECT pg_advisory_lock(:lock)"), {"lock": LOCK})
        connection.commit()
        unknown = _revisions_of(connection) - _ours().known
        connection.commit()  # or all revisions would be one transaction, with the locks of all
        if unknown:
            raise UnknownRevisionError(max(unknown))
        config = _config()
        config.attributes["connection"] = connection
        try:
            migration(config, revision)
        except OperationalError as error:
            if isinstance(error.orig, LockNotAvailable | DeadlockDetected):
                raise TableLockedError from None
            raise
        connection.commit()


def _serves(connection: Connection) -> bool:
    """Compare revisions, which sort by age; an unknown later one is of a newer release."""
    ours, found = _ours(), _revisions_of(connection)
    unknown = found - ours.known
    return found == ours.heads or (bool(unknown) and max(unknown) > max(ours.heads))


def _revisions_of(connection: Connection) -> frozenset[str]:
    """Return the revisions of a database, without what Alembic logs about its connection."""
    exists = connection.scalar(text("SELECT to_regclass('alembic_version') IS NOT NULL"))
    if not exists:
        return frozenset()
    return frozenset(connection.scalars(text("SELECT version_num FROM alembic_version")))


@dataclass(frozen=True, slots=True)
class _Revisions:
    known: frozenset[str]
    heads: frozenset[str]


@cache
def _ours() -> _Revisions:
    """Return the revisions of this release; their files are read once."""
    script = ScriptDirectory.from_config(_config())
    known = frozenset(revision.revision for revision in script.walk_revisions())
    return _Revisions(known, frozenset(script.get_heads()))


@contextmanager
def _connected(url: str) -> Iterator[Connection]:
    """Yield a connection that nothing is left of afterwards, the lock on it included."""
    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"), poolclass=NullPool)
    with engine.connect() as connection:
        yield connection


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(files("migrations")))
    return config
