"""Pools of connections: one for work, and small ones of their own for what must not wait."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

import psycopg
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from caseworker.adapters.postgres.connections import Connection, Patience, is_passing
from caseworker.engine.fair_slots import FairSlots
from caseworker.observability.store_errors import StoreUnavailableError

PULSE_SECONDS = 2.0
"""How long a heartbeat waits for a connection, and for an answer: a silent connection must be
hung up on before others take the process for dead."""


class Pool:
    """Connections that are kept for the next time, at most so many of them in use at once.

    Whoever has to wait for one waits here. In the line of the query builder's own pool they would
    be forgotten when the database goes away, and stand there until their time is up although there
    are connections again; so that pool is not bounded, and nobody ever waits in it.
    """

    def __init__(
        self,
        connect: Callable[[], Awaitable[psycopg.AsyncConnection[Any]]],
        *,
        size: int,
        wait_seconds: float,
        ping: bool = True,
    ) -> None:
        """Use ``connect`` when a connection is needed; ``ping`` looks at each before its use."""
        self.size = size
        self.in_use = 0
        """How many are in use now."""
        self._wait_seconds = wait_seconds
        self._slots = FairSlots(size)
        self._engine = create_async_engine(
            "postgresql+psycopg://",
            async_creator=connect,
            pool_size=size,
            max_overflow=-1,
            pool_pre_ping=ping,
            hide_parameters=True,  # an error would quote rows
        )

    @asynccontextmanager
    async def begin(self, tenant: str | None = None) -> AsyncIterator[AsyncConnection]:
        """Open a transaction that commits when the block ends; ``tenant`` bounds it to a share.

        Raises:
            TimeoutError: all connections were in use for too long.
            sqlalchemy.exc.SQLAlchemyError: what the database had to say.
            psycopg.Error: no connection could be made.
        """
        async with asyncio.timeout(self._wait_seconds):
            await self._slots.acquire(tenant)
        self.in_use += 1
        try:
            async with self._engine.begin() as connection:
                yield connection
        finally:
            self.in_use -= 1
            self._slots.release(tenant)

    async def dispose(self) -> None:
        """Close all connections."""
        await self._engine.dispose()


@dataclass(frozen=True, slots=True)
class Engines:
    """The pools of this process."""

    work: Pool
    control: Pool
    """For stops, health and readiness, so that a busy pool never blocks a stop."""
    pulse: Pool
    """One connection for the heartbeat, so that a flood of stops never silences the process."""

    async def dispose(self) -> None:
        """Close all connections."""
        for pool in (self.work, self.control, self.pulse):
            await pool.dispose()


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSizes:
    """How many connections this process may hold, and how long it waits for them."""

    work: int
    control: int
    patience: Patience


def open_engines(url: str, sizes: PoolSizes) -> Engines:
    """Return the pools; connections are made when they are first needed."""

    def pool(size: int, patience: Patience) -> Pool:
        connect = partial(Connection.open, url, patience)
        return Pool(connect, size=size, wait_seconds=patience.connect_seconds)

    patience = sizes.patience
    soon = replace(
        patience,
        connect_seconds=min(PULSE_SECONDS, patience.connect_seconds),
        answer_seconds=min(PULSE_SECONDS, patience.answer_seconds),
    )
    return Engines(
        work=pool(sizes.work, patience), control=pool(sizes.control, patience), pulse=pool(1, soon)
    )


AS_TENANT = """
SELECT set_config('caseworker.tenant', %s, true), (
    SELECT set_config('role', 'caseworker_tenant', true)
    FROM pg_class WHERE oid = 'runs'::regclass AND relforcerowsecurity
)
"""
"""Until the transaction ends, see the rows of one tenant only, whatever the statements say.

Where the role could not be made, the statements alone keep tenants apart.
"""


@asynccontextmanager
async def transaction(
    pool: Pool,
    tenant: str | None = None,
    *,
    on_behalf_of: str | None = None,
    statement_ms: int | None = None,
) -> AsyncIterator[AsyncConnection]:
    """Open a transaction that commits when the block ends; with a ``tenant``, on its rows alone.

    ``on_behalf_of`` names the tenant whose share of the pool is used, without that restriction.
    ``statement_ms`` is the time limit of each statement.

    Raises:
        StoreUnavailableError: the database cannot be reached, went away, or is too busy. If it
            went away while the transaction was being committed, nobody knows whether it was.
    """
    try:
        async with pool.begin(tenant or on_behalf_of) as connection:
            if statement_ms is not None:
                await connection.exec_driver_sql(f"SET LOCAL statement_timeout = {statement_ms:d}")
            if tenant is not None:
                raw = await connection.get_raw_connection()
                driver = cast("psycopg.AsyncConnection[Any]", raw.driver_connection)
                await driver.execute(AS_TENANT, (tenant,), prepare=True)
            yield connection
    except OSError as error:  # a TimeoutError among them
        raise StoreUnavailableError from error
    except DBAPIError as error:
        if error.connection_invalidated or is_passing(error.orig):
            raise StoreUnavailableError from error
        raise
    except psycopg.Error as error:  # while connecting, or past the query builder
        if is_passing(error):
            raise StoreUnavailableError from error
        raise


async def takes_writes(pool: Pool) -> bool | None:
    """Tell whether the database takes writes; None if it does not answer.

    It answers and takes none if it is a standby, or was told to.
    """
    try:
        async with transaction(pool) as connection:
            read_only = await connection.scalar(text("SHOW transaction_read_only"))
    except StoreUnavailableError:
        return None
    return bool(read_only == "off")
