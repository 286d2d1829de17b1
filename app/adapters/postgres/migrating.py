"""Brings the database to the revision that this code needs, and finds out whether it is there."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.resources import files

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.pool import NullPool

from app.adapters.postgres.engines import Pool, transaction

LOCK = 0x43617365
"""The advisory lock that lets one process migrate at a time."""


class UnknownRevisionError(Exception):
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
        config = _config()
        unknown = _revisions_of(connection) - _known(ScriptDirectory.from_config(config))
        if unknown:
            raise UnknownRevisionError(max(unknown))
        config.attributes["connection"] = connection
        migration(config, revision)
        connection.commit()


def _serves(connection: Connection) -> bool:
    """Compare revisions, which sort by age; an unknown later one is of a newer release."""
    script = ScriptDirectory.from_config(_config())
    heads, found = set(script.get_heads()), _revisions_of(connection)
    unknown = found - _known(script)
    return found == heads or (bool(unknown) and max(unknown) > max(heads))


def _revisions_of(connection: Connection) -> set[str]:
    return set(MigrationContext.configure(connection).get_current_heads())


def _known(script: ScriptDirectory) -> set[str]:
    return {revision.revision for revision in script.walk_revisions()}


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
