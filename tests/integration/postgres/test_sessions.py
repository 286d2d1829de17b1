"""Sessions that must be replaced: silent, read-only or outdated ones."""

import asyncio
import math
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import psycopg
import pytest
from psycopg import waiting
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy import text

from caseworker.platform.errors import StoreUnavailableError
from caseworker.platform.postgres import connections
from caseworker.platform.postgres.connections import (
    Connection,
    Patience,
    ReadOnlySessionError,
    connect_options,
    is_passing,
)
from caseworker.platform.postgres.engines import (
    KeptConnection,
    Pool,
    driver_of,
    read_row,
    takes_writes,
    transaction,
)
from caseworker.runs.postgres.listener import listen
from tests.support.database import proxied, upstream_of
from tests.support.fault_proxy import FaultProxy
from tests.support.stores import eventually, open_oracle

PATIENCE = Patience(connect_seconds=10, lock_ms=5000)
BECOME_READ_ONLY = "SET default_transaction_read_only = on"
"""The server reports it, as it does after a demotion or a change of its configuration."""
SLEEPING = """
SELECT EXISTS (
    SELECT FROM pg_stat_activity WHERE query LIKE '%%pg_sleep(600)' AND state = 'active'
)
"""


@pytest.fixture
async def connection(database_url: str) -> AsyncIterator[Connection]:
    async with await Connection.open(database_url, PATIENCE, autocommit=True) as opened:
        yield opened


@pytest.fixture
async def pool(database_url: str) -> AsyncIterator[Pool]:
    opened = Pool(lambda: Connection.open(database_url, PATIENCE), size=2, wait_seconds=10)
    yield opened
    await opened.dispose()


async def write_while_read_only(connection: Connection) -> None:
    await connection.execute(BECOME_READ_ONLY)
    await connection.execute("DELETE FROM runs")


async def execute_an_unknown_statement(connection: Connection) -> None:
    await connection.execute("EXECUTE absent")


async def repeat_a_statement_after_a_migration(connection: Connection) -> None:
    await connection.execute("CREATE TABLE migrated (a integer)")
    await connection.execute("SELECT * FROM migrated", prepare=True)
    options: dict[str, Any] = dict(connection.info.get_parameters())
    async with await psycopg.AsyncConnection.connect(**options, autocommit=True) as another:
        await another.execute("ALTER TABLE migrated ADD b integer")
    await connection.execute("SELECT * FROM migrated", prepare=True)


async def write_to_a_full_disk(connection: Connection) -> None:
    await connection.execute("DO $$ BEGIN RAISE EXCEPTION 'x' USING ERRCODE = '53100'; END $$")


async def violate_a_constraint(connection: Connection) -> None:
    await connection.execute("INSERT INTO runs (tenant_id) VALUES (NULL)")


@pytest.mark.parametrize(
    ("act", "ends", "passes"),
    [
        (write_while_read_only, True, True),
        (execute_an_unknown_statement, True, True),
        (repeat_a_statement_after_a_migration, True, True),
        (write_to_a_full_disk, False, True),
        (violate_a_constraint, False, False),
    ],
)
async def test_an_error_that_the_session_causes_closes_it(
    connection: Connection, act: Callable[[Connection], Awaitable[None]], ends: bool, passes: bool
) -> None:
    """Other errors leave it open; a temporary error becomes 503 instead of 500."""
    with pytest.raises(psycopg.Error) as caught:
        await act(connection)

    assert (connection.closed, is_passing(caught.value)) == (ends, passes)


async def test_a_session_that_becomes_read_only_is_closed_by_its_next_statement(
    connection: Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may lead to a former primary, whose rows are old."""
    await connection.execute(BECOME_READ_ONLY)
    await connection.execute("SELECT 1")  # a new session may read

    monkeypatch.setattr(connections, "READ_ONLY_SECONDS", 0.0)
    with pytest.raises(ReadOnlySessionError) as caught:
        await connection.execute("SELECT 1")

    assert connection.closed
    assert is_passing(caught.value)


async def test_a_pool_replaces_sessions_that_became_read_only(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No caller notices it: neither a read nor a write fails."""
    monkeypatch.setattr(connections, "READ_ONLY_SECONDS", 0.0)
    async with pool.connected() as connection:
        driver = await driver_of(connection)
        await driver.set_autocommit(True)
        with pytest.raises(ReadOnlySessionError):
            await driver.execute(BECOME_READ_ONLY)
    async with transaction(pool) as connection:
        await connection.exec_driver_sql(BECOME_READ_ONLY)

    assert await takes_writes(pool)
    async with transaction(pool) as connection:
        await connection.exec_driver_sql("DELETE FROM runs")


async def test_a_kept_connection_repeats_a_refused_write_in_a_new_session(
    database_url: str,
) -> None:
    """A heartbeat is stored although its session has become read-only."""
    kept = KeptConnection(lambda: Connection.open(database_url, PATIENCE))
    sessions = list[int]()

    async def write(connection: psycopg.AsyncConnection[object]) -> None:
        sessions.append(connection.info.backend_pid)
        await connection.execute("DELETE FROM workers")
        await connection.execute(BECOME_READ_ONLY)

    await kept.use(write)
    await kept.use(write)
    await kept.dispose()

    assert len(sessions) == 3, "the second write was refused once"
    assert len(set(sessions)) == 2


async def test_a_listener_leaves_a_session_that_became_read_only(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A standby receives no notifications, and a closed session is opened again by its loop."""
    monkeypatch.setattr(connections, "READ_ONLY_SECONDS", 0.0)
    monkeypatch.setattr("caseworker.runs.postgres.listener.QUIET_SECONDS", 0.01)
    monkeypatch.setattr(Connection, "open", classmethod(_opened_and_demoted))

    async def ignore(*_: object) -> None:
        pass

    with pytest.raises(ReadOnlySessionError):
        await listen(
            database_url, ["some"], patience=PATIENCE, on_notification=ignore, listening=ignore
        )


async def _opened_and_demoted(
    cls: type[Connection], /, url: str, patience: Patience, **options: Any
) -> Connection:
    """Open a connection whose session becomes read-only after its first statement."""
    connection = await cls.connect(**connect_options(url, patience), **options)
    execute: Any = connection.execute

    async def demoted(*arguments: Any) -> Any:
        connection.opened_at = math.inf  # so that the next statement does not close it yet
        await execute(BECOME_READ_ONLY)
        connection.opened_at = 0.0
        return await execute(*arguments)

    connection.execute = demoted  # type: ignore[assignment, method-assign]
    return connection


async def test_a_cancellation_does_not_wait_for_a_silent_server(database_url: str) -> None:
    """The driver alone would wait ten seconds, which is longer than a readiness check may take."""
    async with FaultProxy(upstream_of(database_url)) as proxy:
        url = proxied(database_url, proxy)
        async with await Connection.open(url, PATIENCE, autocommit=True) as connection:
            proxy.silence()
            asking = asyncio.create_task(connection.execute("SELECT 1"))
            await asyncio.sleep(0)
            while not connection._is_active:  # noqa: ASYNC110
                await asyncio.sleep(0)
            asking.cancel()
            _, pending = await asyncio.wait((asking,), timeout=4)

            assert not pending
            assert asking.cancelled()
            assert connection.closed


async def test_a_cancelled_statement_ends_at_the_server(
    connection: Connection, database_url: str
) -> None:
    """The request to cancel it is delivered in the background."""
    async with open_oracle(database_url) as oracle:
        sleeping = asyncio.create_task(connection.execute("SELECT pg_sleep(600)"))
        await eventually(lambda: oracle.value(SLEEPING))
        sleeping.cancel()
        await asyncio.wait((sleeping,))

        async def ended() -> bool:
            return not await oracle.value(SLEEPING)

        await eventually(ended, seconds=15)  # less than the timeout of the statement


async def test_a_pool_does_not_wait_for_a_silent_server_beyond_its_time(database_url: str) -> None:
    """The check of an idle connection and the new one share the time for getting a connection."""
    async with FaultProxy(upstream_of(database_url)) as proxy:
        url = proxied(database_url, proxy)
        pool = Pool(lambda: Connection.open(url, PATIENCE), size=1, wait_seconds=3)
        assert await takes_writes(pool)
        proxy.silence()
        asking = asyncio.create_task(takes_writes(pool))
        await asyncio.wait((asking,), timeout=3 + 4)

        assert isinstance(asking.exception(), StoreUnavailableError)
        proxy.resume()
        assert await takes_writes(pool)
        await pool.dispose()


async def cancelled_after(turns: int, work: Coroutine[Any, Any, object]) -> None:
    """Start a task, and cancel it after it was suspended ``turns`` times."""
    task = asyncio.create_task(work)
    for _ in range(turns):
        await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait((task,))


async def test_a_cancelled_read_leaves_no_connection_that_commits_by_itself(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next user of the connection gets a transaction, whenever the read was cancelled."""
    monkeypatch.setattr(waiting, "MAX_BUSY_TIME", 0.0)  # so that each exchange suspends the task
    for turns in range(60):
        await cancelled_after(turns, read_row(pool, "SELECT 1 AS a", ()))
        async with transaction(pool) as connection:
            assert not (await driver_of(connection)).autocommit, turns


async def test_connections_in_use_outlive_the_discovery_of_a_lost_one(pool: Pool) -> None:
    """They are closed when they are used again, because they are as old as the lost one."""
    async with transaction(pool) as used:
        of_used = await driver_of(used)
        async with transaction(pool) as other:
            of_other = await driver_of(other)
        of_other.pgconn.finish()
        async with transaction(pool) as fresh:
            of_fresh = await driver_of(fresh)
        assert await used.scalar(text("SELECT 1")) == 1
    async with transaction(pool) as first, transaction(pool) as second:
        later = {await driver_of(first), await driver_of(second)}

    assert of_fresh in later
    assert of_used not in later
    assert of_used.closed


@pytest.mark.parametrize(
    ("hosts", "seconds"), [("one", 10), ("one,two", 5), ("one,two,three", 3), ("a,b,c,d,e,f", 2)]
)
def test_the_hosts_of_a_url_share_the_time_for_connecting(hosts: str, seconds: int) -> None:
    """A frozen first host must not use up the time of the next one."""
    options = connect_options(f"postgresql://{hosts}/name?client_encoding=latin1", PATIENCE)

    assert options["connect_timeout"] == seconds
    assert options["client_encoding"] == "utf8"
    assert re.fullmatch(hosts, options["host"])
    assert conninfo_to_dict("", **options)["dbname"] == "name"
