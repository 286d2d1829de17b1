"""Heartbeats in Postgres, and the statements of a process that has nothing to do."""

import asyncio
from typing import Any

import psycopg
import pytest

from caseworker.platform.errors import StoreUnavailableError
from caseworker.platform.postgres import engines
from caseworker.runs.execute.queue.work_search import look_statement
from caseworker.runs.postgres import listener
from caseworker.runs.postgres.run_statements import OWNED_BY
from caseworker.runs.recover.postgres import BEAT
from caseworker.settings.schema import WorkerSettings
from tests.support.stores import open_oracle, open_stores
from tests.support.tenants import open_tenants

BEATS = 20
LOOK = look_statement([])
LAST = "SELECT beat_at FROM workers"
LIFE_LOCKS = """
SELECT count(*) FROM pg_locks JOIN pg_database ON pg_database.oid = database
WHERE locktype = 'advisory' AND datname = current_database()
"""
WORKER = WorkerSettings(heartbeat_seconds=0.1, stale_after_seconds=3600)


async def test_an_idle_process_sends_three_statements_for_each_heartbeat(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It renews its lease, reads the runs it owns, and looks for all other work.

    It polls no queue, and no loop of a feature sends another statement.
    """
    sent: list[str] = []
    beaten = asyncio.Event()
    execute = psycopg.AsyncCursor.execute

    async def noted(cursor: Any, query: Any, *arguments: Any, **options: Any) -> Any:
        sent.append(str(query))
        if query == BEAT and sent.count(BEAT) > BEATS:
            beaten.set()
        return await execute(cursor, query, *arguments, **options)

    monkeypatch.setattr(psycopg.AsyncCursor, "execute", noted)
    monkeypatch.setattr(listener, "QUIET_SECONDS", 3600)
    async with open_tenants(database_url, executes=True, worker=WORKER), asyncio.timeout(150):
        while True:  # at first, the statements that start the process are among them
            sent.clear()
            beaten.clear()
            await beaten.wait()
            if {LOOK if each.startswith(LOOK) else each for each in sent} == {BEAT, OWNED_BY, LOOK}:
                break


async def test_a_heartbeat_counts_although_the_runs_cannot_be_read(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The worker also keeps the connection with the lock that shows that it is alive."""
    monkeypatch.setattr(engines, "PULSE_STATEMENT_MS", 500)
    async with open_stores(database_url) as stores, open_oracle(database_url) as oracle:
        await stores.workers.beat("w1")
        before = await oracle.value(LAST)
        async with oracle.connection.transaction():
            await oracle.rows("LOCK TABLE runs")
            with pytest.raises(StoreUnavailableError):
                await stores.workers.beat("w1")

            assert await oracle.value(LAST) > before
            assert await oracle.value(LIFE_LOCKS) == 1
