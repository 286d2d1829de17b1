"""Connections: one pool for work, a small one of its own for stops and health."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from sqlalchemy import text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from app.adapters.postgres.json_text import dump
from app.runs.errors import StoreUnavailableError


@dataclass(frozen=True, slots=True)
class Engines:
    """The pools of this process."""

    work: AsyncEngine
    control: AsyncEngine
    """For stops, health and readiness, so that a busy pool never blocks a stop."""

    async def dispose(self) -> None:
        """Close all connections."""
        await self.work.dispose()
        await self.control.dispose()


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSizes:
    """How many connections this process may hold, and how long it waits."""

    work: int = 8
    control: int = 2
    connect_timeout_seconds: float = 5.0
    lock_timeout_ms: int = 5000


def driver_url(url: str) -> str:
    """Return a database URL as the driver takes it, whatever dialect name it came with."""
    plain = make_url(url).set(drivername="postgresql")
    return plain.render_as_string(hide_password=False)


def open_engines(url: str, sizes: PoolSizes) -> Engines:
    """Return the pools; connections are made when they are first needed."""
    return Engines(_engine(url, sizes.work, sizes), _engine(url, sizes.control, sizes))


@asynccontextmanager
async def transaction(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """Open a transaction that commits when the block ends.

    Raises:
        StoreUnavailableError: the database cannot be reached, or went away.
    """
    try:
        async with engine.begin() as connection:
            yield connection
    except (OperationalError, InterfaceError, PoolTimeoutError, OSError) as error:
        raise StoreUnavailableError from error
    except DBAPIError as error:
        if error.connection_invalidated:
            raise StoreUnavailableError from error
        raise


async def answers(engine: AsyncEngine) -> bool:
    """Tell whether the database answers."""
    try:
        async with transaction(engine) as connection:
            await connection.execute(text("SELECT 1"))
    except StoreUnavailableError:
        return False
    return True


def _engine(url: str, size: int, sizes: PoolSizes) -> AsyncEngine:
    return create_async_engine(
        make_url(url).set(drivername="postgresql+psycopg"),
        pool_size=size,
        max_overflow=0,
        pool_timeout=sizes.connect_timeout_seconds,
        pool_pre_ping=True,
        json_serializer=dump,
        connect_args={
            "connect_timeout": int(sizes.connect_timeout_seconds),
            "options": f"-c lock_timeout={sizes.lock_timeout_ms}",
        },
    )
