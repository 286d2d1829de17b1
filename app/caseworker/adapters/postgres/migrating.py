"""Brings the database to the revision that this code needs, and finds out whether it is there."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Literal

import psycopg
from psycopg.errors import DeadlockDetected, LockNotAvailable
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.exc import OperationalError
from sqlalchemy.pool import NullPool

from caseworker.adapters.postgres.connections import driver_url
from caseworker.adapters.postgres.engines import Pool, transaction

# Alembic is imported to migrate alone: a process that finds everything as it needs it, as most do,
# is 13 MB smaller without.

_INSTALLED = Path(str(files("caseworker"))) / "migrations"
_SCRIPTS = _INSTALLED if _INSTALLED.is_dir() else Path(__file__).parents[4] / "migrations"
"""The wheel has them in the package, a checkout of the repository at its top."""
_REVISION_CHARS = len("20261125_0300")

LOCK = 0x43617365
"""The advisory lock that lets one process migrate at a time."""


class MigrationError(Exception):
    """The database cannot be migrated now; the message says what to do."""


class TableLockedError(MigrationError):
    """Somebody held a table for longer than a migration waits, or waited for it in turn."""

    def __init__(self) -> None:
        super().__init__(
            "a migration timed out waiting for a locked table and changed nothing: end the "
            "transaction that holds the lock, or wait until it ends, and migrate again"
        )


class UnknownRevisionError(MigrationError):
    """The database was migrated by other code than this; the message says what to do."""

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


def upgrade(url: str, revision: str = "head") -> None:
    """Migrate up; processes that start together wait for one another.

    Raises:
        UnknownRevisionError: the database is at a revision that is none of ours.
        TableLockedError: a table was locked; the revisions before that one are done.
        sqlalchemy.exc.OperationalError: the database does not answer.
    """
    _migrate(url, "upgrade", revision)


def downgrade(url: str, revision: str) -> None:
    """Migrate down; raises what :func:`upgrade` does."""
    _migrate(url, "downgrade", revision)


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


def _migrate(url: str, command: Literal["upgrade", "downgrade"], revision: str) -> None:

    with _connected(url) as connection:
        connection.execute(text("SELECT pg_advisory_lock(:lock)"), {"lock": LOCK})
        connection.commit()
        found = _revisions_of(connection)
        unknown = found - our_revisions()
        connection.commit()  # or all revisions would be one transaction, with the locks of all
        if unknown:
            raise UnknownRevisionError(max(unknown))
        if command == "upgrade" and revision == "head" and found == {max(our_revisions())}:
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
    """Compare revisions, which sort by age; an unknown later one is of a newer release."""
    newest, found = max(our_revisions()), _revisions_of(connection)
    unknown = found - our_revisions()
    return found == {newest} or (bool(unknown) and max(unknown) > newest)


def _revisions_of(connection: Connection) -> frozenset[str]:
    """Return the revisions of a database, without what Alembic logs about its connection."""
    exists = connection.scalar(text("SELECT to_regclass('alembic_version') IS NOT NULL"))
    if not exists:
        return frozenset()
    return frozenset(connection.scalars(text("SELECT version_num FROM alembic_version")))


@cache
def our_revisions() -> frozenset[str]:
    """Return the revisions of this release, each by the beginning of its file's name."""
    names = (file.name for file in (_SCRIPTS / "versions").iterdir())
    return frozenset(name[:_REVISION_CHARS] for name in names if name.endswith(".py"))


@contextmanager
def _connected(url: str) -> Iterator[Connection]:
    """Yield a connection that nothing is left of afterwards, the lock on it included."""
    connect = partial(psycopg.connect, driver_url(url))  # libpq alone parses URLs
    engine = create_engine("postgresql+psycopg://", creator=connect, poolclass=NullPool)
    with engine.connect() as connection:
        yield connection
