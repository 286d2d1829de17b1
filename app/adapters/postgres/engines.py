"""Pools of connections: one for work, and small ones of their own for what must not wait."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import psycopg
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

from app.adapters.postgres.connections import Connection, Patience
from app.adapters.postgres.failures import is_passing
from app.adapters.postgres.json_text import dump
from app.runs.errors import StoreUnavailableError


@dataclass(frozen=True, slots=True)
class Engines:
    """The pools of this process."""

    work: AsyncEngine
    control: AsyncEngine
    """For stops, health and readiness, so that a busy pool never blocks a stop."""
    pulse: AsyncEngine
    """One connection for the heartbeat, so that a flood of stops never silences the process."""

    async def dispose(self) -> None:
        """Close all connections."""
        for engine in (self.work, self.control, self.pulse):
            await engine.dispose()


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSizes:
    """How many connections this process may hold, and how long it waits."""

    work: int = 8
    control: int = 2
    connect_timeout_seconds: float = 5.0
    """To make a connection, and to be given one."""
    lock_timeout_ms: int = 5000


def open_engines(url: str, sizes: PoolSizes) -> Engines:
    """Return the pools; connections are made when they are first needed."""
    return Engines(
        work=_engine(url, sizes.work, sizes),
        control=_engine(url, sizes.control, sizes),
        pulse=_engine(url, 1, sizes),
    )


@asynccontextmanager
async def transaction(engine: AsyncEngine) -> AsyncIterator[AsyncConnection]:
    """Open a transaction that commits when the block ends.

    Raises:
        StoreUnavailableError: the database cannot be reached, went away, or is too busy. If it
            went away while the transaction was being committed, nobody knows whether it was.
    """
    try:
        async with engine.begin() as connection:
            yield connection
    except (PoolTimeoutError, OSError) as error:
        raise StoreUnavailableError from error
    except DBAPIError as error:
        if error.connection_invalidated or _is_passing(error.orig):
            raise StoreUnavailableError from error
        raise
    except psycopg.Error as error:  # while connecting, or past the query builder
        if is_passing(error):
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


def _is_passing(error: BaseException | None) -> bool:
    return error is not None and is_passing(error)


def _engine(url: str, size: int, sizes: PoolSizes) -> AsyncEngine:
    patience = Patience(
        connect_seconds=sizes.connect_timeout_seconds, lock_ms=sizes.lock_timeout_ms
    )
    return create_async_engine(
        "postgresql+psycopg://",
        async_creator=lambda: Connection.open(url, patience),
        pool_size=size,
        max_overflow=0,
        pool_timeout=sizes.connect_timeout_seconds,
        pool_pre_ping=True,
        json_serializer=dump,
    )
