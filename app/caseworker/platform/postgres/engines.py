"""Connection pools: one for work, and small separate pools for operations that must not wait."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Final, TypeVar, cast

import psycopg
from psycopg.rows import dict_row
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, create_async_engine

from caseworker.platform.errors import StoreUnavailableError
from caseworker.platform.fair_slots import TENANT, FairSlots
from caseworker.platform.postgres.connections import Connection, Patience, is_passing

T = TypeVar("T")

PULSE_SECONDS = 2.0
"""Seconds that a heartbeat waits for a connection, and then for an answer.

A silent connection must be closed before other processes consider this process dead.
"""

PULSE_STATEMENT_MS = 1_500
"""Maximum milliseconds that a statement of a heartbeat may take on the server. It must end before
the connection is closed, because the lock that shows that this process is alive ends with it."""


ERRORS = (OSError, DBAPIError, psycopg.Error)
"""Errors of SQLAlchemy, of the driver and of the network, timeouts included."""


class Pool:
    """A bounded pool of reusable database connections.

    Callers wait here for a free connection, and not in SQLAlchemy's pool. Waiters in SQLAlchemy's
    pool are not woken after a database outage: they wait until their timeout even though
    connections are available again. That pool is therefore unbounded, and no caller ever waits in
    it.
    """

    def __init__(
        self, connect: Callable[[], Awaitable[Connection]], *, size: int, wait_seconds: float
    ) -> None:
        """Use ``connect`` to open connections; a caller waits ``wait_seconds`` for one."""
        self.size = size
        self.in_use = 0
        """Number of connections currently in use."""
        self._connect = connect
        self._wait_seconds = wait_seconds
        self._slots = FairSlots(size)
        self._lost_at = 0.0
        """Clock at which a connection was last found to be lost."""
        self._engine = create_async_engine(
            "postgresql+psycopg://",
            async_creator=connect,
            pool_size=size,
            max_overflow=-1,
            hide_parameters=True,  # errors would otherwise quote rows
        )

    @asynccontextmanager
    async def connected(self, tenant: str | None = None) -> AsyncIterator[AsyncConnection]:
        """Use a connection of the pool during the block, without a transaction.

        It counts against the share of ``tenant``, or else of the current :data:`TENANT`.

        Raises:
            TimeoutError: no working connection became available in time.
            sqlalchemy.exc.SQLAlchemyError: a statement failed.
            psycopg.Error: no connection could be opened.
        """
        tenant = tenant or TENANT.get()
        async with asyncio.timeout(self._wait_seconds) as limit:
            await self._slots.acquire(tenant)
        # The slot bounds the connections; the pool below it never makes a caller wait.
        self.in_use += 1
        try:
            async with AsyncExitStack() as stack:
                async with asyncio.timeout_at(limit.when()):
                    connection = await stack.enter_async_context(self._checked())
                yield connection
        finally:
            self.in_use -= 1
            self._slots.release(tenant)

    @asynccontextmanager
    async def _checked(self) -> AsyncIterator[AsyncConnection]:
        """Use a connection that works: an idle one that answers, else a new one."""
        while True:
            async with self._engine.connect() as connection:
                if await self._works(await driver_of(connection)):
                    yield connection
                    return
                await connection.invalidate()

    async def _works(self, driver: Connection) -> bool:
        """Check a connection. When one is lost, so are those that were opened before."""
        if driver.opened_at < self._lost_at:
            return False
        try:
            await driver.check()
        except ERRORS:
            self._lost_at = time.monotonic()
            return False
        return True

    async def can_grow(self) -> bool:
        """Return whether the database accepts a new connection as soon as a heartbeat needs it."""
        try:
            async with asyncio.timeout(PULSE_SECONDS):
                connection = await self._connect()
        except ERRORS:
            return False
        await connection.close()
        return True

    async def dispose(self) -> None:
        """Close all connections."""
        await self._engine.dispose()


async def driver_of(connection: AsyncConnection) -> Connection:
    """Return the connection of the driver below one of SQLAlchemy."""
    return cast("Connection", (await connection.get_raw_connection()).driver_connection)


class KeptConnection:
    """One connection outside of all pools, for statements that a process sends all the time.

    Every statement is its own transaction, and rows are mappings. Without BEGIN, COMMIT and the
    check of a pool, a statement takes one round trip. A plan that was made when a table was small
    does not scan it.
    """

    size = 1

    def __init__(self, connect: Callable[[], Awaitable[psycopg.AsyncConnection[Any]]]) -> None:
        """Use ``connect`` to open the connection, on first use and after it was lost."""
        self._connect = connect
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._lock = asyncio.Lock()

    @property
    def in_use(self) -> int:
        """Number of connections currently in use."""
        return int(self._lock.locked())

    async def use(self, work: Callable[[psycopg.AsyncConnection[Any]], Awaitable[T]]) -> T:
        """Return the result of ``work``; repeat it if the connection was lost since the last use.

        Raises:
            StoreUnavailableError: the database cannot be reached, went away, or is too busy.
        """
        with _outages():
            async with self._lock:
                if (connection := self._connection) is not None:
                    try:
                        return await work(connection)
                    except ERRORS:
                        if not connection.closed:
                            raise
                        self._connection = None
                self._connection = await self._connect()
                await self._connection.set_autocommit(True)
                await self._connection.execute("SET enable_seqscan = off")
                self._connection.row_factory = dict_row
                return await work(self._connection)

    async def dispose(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            await self._connection.close()


@dataclass(frozen=True, slots=True)
class Engines:
    """The connections of this process."""

    work: Pool
    control: Pool
    """Pool for cancel requests, health and readiness checks, so that a busy work pool never delays
    them."""
    pulse: KeptConnection
    """Connection for the heartbeat, so that a flood of cancel requests never delays it."""
    look: KeptConnection
    """Connection that recovery looks for work with, so that it never delays the heartbeat."""
    sums: FairSlots = field(default_factory=lambda: FairSlots(1))
    """Held by a statement that adds up many runs, so that all of them use one core of the database,
    not all cores."""

    async def dispose(self) -> None:
        """Close all connections."""
        for each in (self.work, self.control, self.pulse, self.look):
            await each.dispose()


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSizes:
    """Maximum numbers of connections that this process may hold, and their timeouts."""

    work: int
    control: int
    patience: Patience


def open_engines(url: str, sizes: PoolSizes) -> Engines:
    """Return the connections to a database; each one is opened on first use."""
    patience = sizes.patience
    pool = partial(
        Pool, partial(Connection.open, url, patience), wait_seconds=patience.connect_seconds
    )
    soon = replace(
        patience,
        connect_seconds=min(PULSE_SECONDS, patience.connect_seconds),
        answer_seconds=min(PULSE_SECONDS, patience.answer_seconds),
        statement_ms=PULSE_STATEMENT_MS,
        lock_ms=min(PULSE_STATEMENT_MS, patience.lock_ms),
    )
    open_kept = partial(KeptConnection, partial(Connection.open, url, soon))
    return Engines(
        work=pool(size=sizes.work),
        control=pool(size=sizes.control),
        pulse=open_kept(),
        look=open_kept(),
    )


AS_TENANT = """
SELECT set_config('caseworker.tenant', %s, true), (
    SELECT set_config('role', 'caseworker_tenant', true)
    FROM pg_class WHERE oid = 'runs'::regclass AND relforcerowsecurity
)
"""
"""SQL that restricts the transaction to the rows of one tenant, whatever its statements select.

If the database role for tenants could not be created, only the conditions in the statements
separate tenants.
"""


LONG_STATEMENTS: Final = """
SELECT set_config('statement_timeout', %s, true),
    set_config('plan_cache_mode', 'force_custom_plan', true)
"""


@asynccontextmanager
async def transaction(
    pool: Pool,
    tenant: str | None = None,
    *,
    statement_ms: int | None = None,
) -> AsyncIterator[AsyncConnection]:
    """Open a transaction that commits when the block ends.

    ``tenant`` restricts it to that tenant's rows and uses the tenant's share of the pool; without
    it, the share of the current :data:`TENANT` is used. ``statement_ms`` is the time limit for each
    statement in milliseconds; it is for statements that may read many rows. Their best plan depends
    on the values, so a plan for any values is not used.

    Raises:
        StoreUnavailableError: the database cannot be reached, went away, or is too busy. If the
            connection was lost during the commit, the outcome of the transaction is unknown.
    """
    with _outages():
        async with pool.connected(tenant) as connection, connection.begin():
            if statement_ms is not None:
                await connection.exec_driver_sql(LONG_STATEMENTS, (str(statement_ms),))
            if tenant is not None:
                driver = await driver_of(connection)
                await driver.execute(AS_TENANT, (tenant,), prepare=True)
            yield connection


async def read_row(
    pool: Pool, statement: str, values: Sequence[Any] | Mapping[str, Any]
) -> Mapping[str, Any] | None:
    """Return the row that a single statement reads, or None; see :func:`read_rows`."""
    return next(iter(await read_rows(pool, statement, values)), None)


async def read_rows(
    pool: Pool,
    statement: str,
    values: Sequence[Any] | Mapping[str, Any],
    *,
    tenant: str | None = None,
    locks: str | None = None,
) -> Sequence[Mapping[str, Any]]:
    """Return the rows of a single statement, which may also write.

    It takes one round trip instead of the three or four of a transaction. ``tenant`` restricts it
    to that tenant's rows. ``locks`` is a statement with the same values that is executed before,
    in the same transaction; it needs a tenant.

    Raises:
        StoreUnavailableError: the database cannot be reached, went away, or is too busy.
        psycopg.Error: the statement failed.
    """
    with _outages():
        async with pool.connected(tenant) as connection:
            driver = await driver_of(connection)
            try:
                await driver.set_autocommit(True)
                async with driver.cursor(row_factory=dict_row) as cursor:
                    if tenant is None:
                        await cursor.execute(statement, values, prepare=True)
                        return await cursor.fetchall()
                    async with driver.pipeline():  # one implicit transaction
                        await driver.execute(AS_TENANT, (tenant,), prepare=True)
                        if locks is not None:
                            await driver.execute(locks, values, prepare=True)
                        await cursor.execute(statement, values, prepare=True)
                        return await cursor.fetchall()
            finally:
                if not driver.closed:
                    await driver.set_autocommit(False)


@contextmanager
def _outages() -> Iterator[None]:
    """Raise StoreUnavailableError if the database cannot be used at the moment."""
    try:
        yield
    except ERRORS as error:
        if _is_outage(error):
            raise StoreUnavailableError from error
        raise


def _is_outage(error: Exception) -> bool:
    """Return whether an error means that the database cannot be used at the moment."""
    if isinstance(error, DBAPIError):
        return error.connection_invalidated or is_passing(error.orig)
    return isinstance(error, OSError) or is_passing(error)


async def takes_writes(pool: Pool) -> bool:
    """Return whether the database accepts writes.

    A standby responds but accepts no writes, as does a database that is set to read-only.

    Raises:
        StoreUnavailableError: the database does not respond.
    """
    async with transaction(pool) as connection:
        return bool(await connection.scalar(text("SHOW transaction_read_only")) == "off")
