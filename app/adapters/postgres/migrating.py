"""Brings the database to the revision that this code needs, and tells whether it is there."""

from collections.abc import Callable
from importlib.resources import files

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.ext.asyncio import AsyncEngine

from app.adapters.postgres.engines import transaction

LOCK = 0x43617365
"""The advisory lock that lets one process migrate at a time."""


def upgrade(url: str, revision: str = "head") -> None:
    """Migrate up; processes that start together wait for one another."""
    _migrate(url, command.upgrade, revision)


def downgrade(url: str, revision: str) -> None:
    """Migrate down."""
    _migrate(url, command.downgrade, revision)


async def is_current(engine: AsyncEngine) -> bool:
    """Tell whether the database is at the newest revision."""
    async with transaction(engine) as connection:
        return await connection.run_sync(_at_head)


def _migrate(url: str, migration: Callable[[Config, str], None], revision: str) -> None:
    engine = create_engine(make_url(url).set(drivername="postgresql+psycopg"))
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


def _at_head(connection: Connection) -> bool:
    current = set(MigrationContext.configure(connection).get_current_heads())
    return current == set(ScriptDirectory.from_config(_config()).get_heads())


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(files("migrations")))
    return config
