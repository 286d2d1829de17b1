"""Tenants share the connections of a process: one of them cannot use them all."""

import asyncio
from contextlib import AsyncExitStack

import psycopg
import pytest

from app.settings.models import ModelsSettings, SmallModelSettings
from app.settings.schema import DatabaseSettings, EventSettings, WorkerSettings
from tests.support.asgi_calls import streamed
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.tenants import Tenants, open_tenants

GRAPH = {"steps": [{"id": "s", "type": "approval", "data": {"message": "?"}}], "edges": []}


async def waiting_for_locks(connection: psycopg.AsyncConnection) -> int:
    found = await connection.execute(
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE datname = current_database() AND wait_event_type = 'Lock'"
    )
    row = await found.fetchone()
    assert row is not None
    return int(row[0])


async def test_a_tenant_leaves_database_connections_to_other_tenants(database_url: str) -> None:
    """Requests of one tenant that all wait in the database do not delay another tenant."""
    pool = DatabaseSettings(pool_size=3)
    async with (
        open_tenants(database_url, database=pool) as tenants,
        await psycopg.AsyncConnection.connect(database_url, autocommit=True) as watching,
        await psycopg.AsyncConnection.connect(database_url) as blocking,
    ):
        made = await tenants.ask("a", "POST", "/graphs", {"name": "x", "graph": GRAPH})
        assert made.status_code == 201, made.text
        await tenants.ask("b", "GET", "/runs")
        await blocking.execute("SELECT FROM definitions WHERE tenant_id = 'a' FOR UPDATE")
        held = [asyncio.create_task(tenants.ask("a", "DELETE", "/graphs/x")) for _ in range(10)]
        while await waiting_for_locks(watching) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

        answer = await tenants.ask("b", "GET", "/runs")

        assert answer.status_code == 200
        assert not any(task.done() for task in held)
        await blocking.rollback()
        await asyncio.wait(held)


@pytest.mark.parametrize("count", [10, 11])
async def test_a_list_takes_at_most_ten_metadata_filters(database_url: str, count: int) -> None:
    """More are 422, in lists and where runs are stopped by a filter."""
    async with open_tenants(database_url) as tenants:
        await require_filters(tenants, count, accepted=count <= 10)


async def require_filters(tenants: Tenants, count: int, *, accepted: bool) -> None:
    names = [f"k{n}" for n in range(count)]
    query = "&".join(f"metadata.{name}=1" for name in names)

    listed = await tenants.ask("a", "GET", f"/runs?{query}")
    stopped = await tenants.ask(
        "a", "POST", "/runs/cancel", {"metadata": dict.fromkeys(names, "1")}
    )

    assert (listed.status_code, stopped.status_code) == ((200, 202) if accepted else (422, 422))
    if not accepted:
        assert listed.json()["errors"][0]["field"] == "metadata"


SLOW = {"name": "slow", "prompt": {"system": "?"}, "model": {"stream": False}}


@pytest.mark.parametrize(("slots", "share"), [(4, 3), (2, 1)])
async def test_a_tenant_leaves_run_slots_to_other_tenants(
    database_url: str, fake: FakeProvider, slots: int, share: int
) -> None:
    """Runs of one tenant that wait for a model do not delay another tenant's run."""
    small = SmallModelSettings(provider="openai", base_url=fake.openai_url, model="fake-small")
    async with open_tenants(
        database_url,
        executes=True,
        models=ModelsSettings(small=small),
        worker=WorkerSettings(max_runs=slots),
    ) as tenants:
        await fake.script("hold", [Step(hang=True)], repeat_last=True)
        for _ in range(slots + 2):
            body = {"kind": "agent", "agent": SLOW, "input": "[hold]"}
            await tenants.ask("a", "POST", "/runs", body)
        quick = {"kind": "case", "input": "What is 2+2?"}

        run = (await tenants.ask("b", "POST", "/runs", quick, prefer="wait=30")).json()
        running = await tenants.ask("a", "GET", "/runs?status=running")
        await tenants.ask("a", "POST", "/runs/cancel", {"kind": "agent"})

    assert run["started_at"] is not None, run
    assert len(running.json()["runs"]) == share


async def test_a_tenant_leaves_event_streams_to_other_tenants(database_url: str) -> None:
    """Beyond its share a tenant gets 429, and another tenant still gets a stream."""
    async with (
        open_tenants(database_url, events=EventSettings(max_streams=3)) as tenants,
        AsyncExitStack() as streams,
    ):
        for tenant in "ab":
            await tenants.ask(tenant, "POST", "/runs", {"run_id": "r", "input": "1+1"})

        async def opened(tenant: str) -> int:
            headers = {"Authorization": f"Bearer {tenants.keys[tenant]}"}
            call = streamed(tenants.app, "/runs/r/events", headers=headers)
            return await (await streams.enter_async_context(call)).answered()

        assert [await opened("a"), await opened("a"), await opened("a")] == [200, 200, 429]
        assert [await opened("b"), await opened("b")] == [200, 429]
