"""Notifications tell a worker at once that a run must stop."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from decimal import Decimal

import psycopg
import pytest

from caseworker.features.quotas.postgres import PostgresQuotas
from caseworker.runs.postgres import listener
from caseworker.runs.postgres.listener import (
    ACCOUNT_CHANNEL,
    CANCEL_CHANNEL,
    WorkerCallbacks,
    listen_for_workers,
)
from caseworker.runs.quotas import Quota
from caseworker.runs.run import CancelRequest, RunKey
from tests.support.database import proxied, upstream_of
from tests.support.fault_proxy import FaultProxy
from tests.support.limits import patience
from tests.support.stores import CANCEL_REQUEST, eventually, new_run, open_oracle, open_stores

KEY = RunKey("default", "case-1")


class Ear:
    """A running listener and the notifications it received."""

    def __init__(self, url: str) -> None:
        self.heard: asyncio.Queue[tuple[RunKey, CancelRequest]] = asyncio.Queue()
        self.decided: asyncio.Queue[RunKey] = asyncio.Queue()
        self.unowned: asyncio.Queue[RunKey] = asyncio.Queue()
        self.settled: asyncio.Queue[str] = asyncio.Queue()
        self.listens = asyncio.Event()
        self._url = url

    def _hear(self, key: RunKey, cancel_request: CancelRequest) -> None:
        self.heard.put_nowait((key, cancel_request))

    async def _connected(self) -> None:
        self.listens.set()

    async def run(self) -> None:
        await listen_for_workers(
            self._url,
            WorkerCallbacks(
                cancelled=self._hear,
                unowned=self.unowned.put_nowait,
                decided=self.decided.put_nowait,
                accounts_changed=lambda tenant, _: self.settled.put_nowait(tenant),
            ),
            patience=patience(),
            listening=self._connected,
        )

    async def next(self) -> tuple[RunKey, CancelRequest]:
        async with asyncio.timeout(150):
            return await self.heard.get()


@asynccontextmanager
async def listening(url: str) -> AsyncIterator[tuple[Ear, "asyncio.Task[None]"]]:
    ear = Ear(url)
    task = asyncio.create_task(ear.run())
    try:
        await ear.listens.wait()
        yield ear, task
    finally:
        task.cancel()
        await asyncio.wait({task})


@pytest.mark.req("card/delete")
async def test_a_stop_of_a_running_run_is_heard(database_url: str) -> None:
    """The notification includes the requester and the reason, on any replica."""
    async with open_stores(database_url) as stores, listening(database_url) as (ear, _):
        await stores.runs.accept(new_run("case-1"), worker_id="w1")
        await stores.runs.cancel(KEY, CANCEL_REQUEST)
        key, cancel_request = await ear.next()

        assert key == KEY
        assert (cancel_request.requested_by, cancel_request.reason) == (
            CANCEL_REQUEST.requested_by,
            CANCEL_REQUEST.reason,
        )


@pytest.mark.parametrize("character", ["\U0001f600", "\x01", "\\", '"'])
async def test_a_long_reason_fits_into_a_notification(database_url: str, character: str) -> None:
    """The reason is shortened to the 8,000 bytes that Postgres accepts, for any characters."""
    cancel_request = CancelRequest(requested_by=character * 300, reason=character * 3000)
    async with open_stores(database_url) as stores, listening(database_url) as (ear, _):
        await stores.runs.accept(new_run("case-1"), worker_id="w1")
        cancelled = await stores.runs.cancel(KEY, cancel_request)
        key, heard = await ear.next()

        assert key == KEY
        assert cancel_request.reason is not None
        assert heard.reason is not None
        assert cancel_request.reason.startswith(heard.reason)
        assert cancelled.cancel_request is not None
        assert cancelled.cancel_request.reason == cancel_request.reason


async def test_what_is_no_stop_is_passed_over(database_url: str) -> None:
    """Any connected client can notify, so invalid payloads are skipped and later ones received."""
    async with open_oracle(database_url) as oracle, listening(database_url) as (ear, _):
        stop = json.dumps({"tenant": "default", "run_id": "case-1", "by": "x", "reason": None})
        for payload in ("", "{", "[]", "null", '{"tenant": 1}', stop):
            await oracle.rows("SELECT pg_notify(%s, %s)", CANCEL_CHANNEL, payload)

        assert (await ear.next())[0] == KEY
        assert ear.heard.empty()


async def test_a_settlement_in_an_account_is_received(database_url: str) -> None:
    """Invalid payloads are skipped."""
    async with open_oracle(database_url) as oracle, listening(database_url) as (ear, _):
        for payload in ("", "[]", "{}", '{"tenant": "t", "account": "tenant"}'):
            await oracle.rows("SELECT pg_notify(%s, %s)", ACCOUNT_CHANNEL, payload)
        async with asyncio.timeout(150):
            assert await ear.settled.get() == "t"


@pytest.mark.req("cw/3.accounts")
async def test_a_changed_quota_wakes_the_calls_that_wait_for_it(database_url: str) -> None:
    """Every process is notified when an operator sets or deletes the quota of a tenant."""
    async with open_stores(database_url) as stores, listening(database_url) as (ear, _):
        quotas = PostgresQuotas(stores.engines.work, Quota())
        for change in (quotas.put("t", Quota(max_cost_usd_per_day=Decimal(1))), quotas.delete("t")):
            await change
            async with asyncio.timeout(150):
                assert await ear.settled.get() == "t"


async def test_a_listener_that_loses_its_connection_says_so(database_url: str) -> None:
    """The listener's supervisor restarts it."""
    async with open_oracle(database_url) as oracle, listening(database_url) as (_, task):
        await oracle.rows(
            """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
               WHERE datname = current_database() AND pid <> pg_backend_pid()"""
        )
        with pytest.raises(psycopg.OperationalError):
            await task


async def test_a_connection_that_died_silently_is_noticed(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listener sends a query after a quiet period and gets no answer."""
    monkeypatch.setattr(listener, "QUIET_SECONDS", 0.05)
    monkeypatch.setattr(listener, "ANSWER_SECONDS", 0.2)
    async with FaultProxy(upstream_of(database_url)) as proxy:
        async with listening(proxied(database_url, proxy)) as (_, task):
            proxy.silence()
            async with asyncio.timeout(150):
                with pytest.raises(psycopg.OperationalError):
                    await task
        proxy.resume()


async def test_a_quiet_connection_is_kept(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The listener checks its connection periodically and receives later notifications."""
    monkeypatch.setattr(listener, "QUIET_SECONDS", 0.01)
    async with open_oracle(database_url) as oracle, listening(database_url) as (ear, task):

        async def asked() -> bool:
            query = "SELECT count(*) FROM pg_stat_activity WHERE query = 'SELECT 1'"
            return bool(await oracle.value(query))

        await eventually(asked)
        stop = json.dumps({"tenant": "default", "run_id": "case-1"})
        for _ in range(20):
            await oracle.rows("SELECT pg_notify(%s, %s)", CANCEL_CHANNEL, stop)
        keys = [(await ear.next())[0] for _ in range(20)]

        assert keys == [KEY] * 20
        assert not task.done()
