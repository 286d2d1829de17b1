"""Brings the database to the revision that this code needs, and tells whether it is there."""

from collections.abc import Callable
from importlib.resources import files

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.engine import URL, make_url

from app.adapters.postgres.engines import Pool, transaction

LOCK = 0x43617365
"""The advisory lock that lets one process migrate at a time."""


def upgrade(url: str, revision: str = "head") -> None:
    """Migrate up; processes that start together wait for one another."""
    _migrate(url, command.upgrade, revision)


def downgrade(url: str, revision: str) -> None:
    """Migrate down."""
    _migrate(url, command.downgrade, revision)


async def is_current(pool: Pool) -> bool:
    """Tell whether the database is where this code needs it, or further."""
    async with transaction(pool) as connection:
        return await connection.run_sync(_serves)


def is_served_by(url: str) -> bool:
    """Tell whether the database is where this code needs it, or further.

    Raises:
        sqlalchemy.exc.OperationalError: the database does not answer.
    """
    engine = create_engine(_driver(url))
    try:
        with engine.connect() as connection:
            return _serves(connection)
    finally:
        engine.dispose()


def _migrate(url: str, migration: Callable[[Config, str], None], revision: str) -> None:
    engine = create_engine(_driver(url))
    try:
        with engine.connect() as connection:
            connection.execute(text("SELECT pg_advisory_lock(:lock)"), {"lock": LOCK})
            connection.commit()
            config = _config()
            config.attributes["connection"] = connection
            migration(config, revision)
            connection.commit()
    finally:
        engine.dispose()


def _serves(connection: Connection) -> bool:
    """Compare revisions; one that this code does not know is of a newer release."""
    script = ScriptDirectory.from_config(_config())
    known = {revision.revision for revision in script.walk_revisions()}
    there = set(MigrationContext.configure(connection).get_current_heads())
    return bool(there) and (there == set(script.get_heads()) or not there <= known)


def _driver(url: str) -> URL:
    return make_url(url).set(drivername="postgresql+psycopg")


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(files("migrations")))
    return config
