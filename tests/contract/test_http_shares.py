"""Tenants share the connections of a process: one of them cannot use them all."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import psycopg
import pytest

from caseworker import ToolContext, tool
from caseworker.features.access import authentication
from caseworker.platform.http import request as shares
from caseworker.platform.http.application import MAX_QUERY_PARAMETERS
from caseworker.settings.models import ModelsSettings, SmallModelSettings
from caseworker.settings.schema import (
    DatabaseSettings,
    EventSettings,
    ServerSettings,
    WorkerSettings,
)
from caseworker.settings.tools import ToolSettings
from tests.support.asgi_calls import streamed
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.served import Served, served
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


SCHEDULE = {"cron": "0 0 1 1 *", "run": {"kind": "graph", "graph": GRAPH}}
RUN = {"kind": "graph", "graph": GRAPH, "run_id": "x"}
BLOCKED: dict[str, tuple[str, int, tuple[str, str, Any]]] = {
    "a schedule": ("schedules a", 0, ("PUT", "/schedules/x", SCHEDULE)),
    "a key": ("keys a", 0, ("POST", "/keys", {"name": "x", "scopes": ["read"]})),
    "a run": ("a", 2, ("POST", "/runs", {"kind": "graph", "graph": GRAPH, "concurrency_key": "k"})),
    "a cancel request": ("", 0, ("POST", "/runs/x/cancel", None)),
    "an erased run": ("", 0, ("DELETE", "/runs/x/record", None)),
}
"""Requests that write, each with the advisory lock and its seed; without one, it locks a run."""


@pytest.mark.parametrize("kind", BLOCKED)
async def test_a_write_of_a_tenant_counts_against_its_share(database_url: str, kind: str) -> None:
    """Writes of one tenant that wait for its locks do not delay those of another tenant."""
    lock, seed, (method, path, body) = BLOCKED[kind]
    pools = DatabaseSettings(pool_size=3, control_pool_size=3)
    async with (
        open_tenants(database_url, database=pools) as tenants,
        await psycopg.AsyncConnection.connect(database_url, autocommit=True) as watching,
        await psycopg.AsyncConnection.connect(database_url) as blocking,
    ):
        for tenant in "ab":
            await tenants.ask(tenant, "POST", "/runs", {**RUN, "run_id": "x"})
        if lock:
            statement = "SELECT pg_advisory_xact_lock(hashtextextended(%s, %s))"
            await blocking.execute(statement, (lock, seed))
        else:
            await blocking.execute("SELECT FROM runs WHERE tenant_id = 'a' FOR UPDATE")
        held = [asyncio.create_task(tenants.ask("a", method, path, body)) for _ in range(10)]
        while await waiting_for_locks(watching) < 2:  # noqa: ASYNC110
            await asyncio.sleep(0.01)

        answer = await tenants.ask("b", method, path, body)

        assert answer.status_code not in (429, 503), answer.text
        assert not any(task.done() for task in held)
        await blocking.rollback()
        await asyncio.wait(held)


WAITING = {"steps": [{"id": "s", "type": "tool", "data": {"tool": "waits", "args": {}}}]}


@tool
def waits(context: ToolContext) -> str:
    """Wait in a thread, unless the run is called ``quick``."""
    if context.run_id != "quick":
        ENDS.wait()
    return "x" * 10_000


ENDS = threading.Event()


async def test_a_tenant_leaves_threads_to_other_tenants_and_to_the_service(
    database_url: str,
) -> None:
    """Tools of one tenant that block their threads delay no tool, trace or metric of another."""
    tools = ToolSettings(plugins=(f"{__name__}:waits",))
    async with open_tenants(database_url, executes=True, tools=tools) as tenants:
        ENDS.clear()
        body = {"kind": "graph", "graph": {**WAITING, "edges": []}}
        for _ in range(50):
            await tenants.ask("a", "POST", "/runs", body)

        run = await tenants.ask("b", "POST", "/runs", {**body, "run_id": "quick"}, prefer="wait=30")
        trace = await tenants.ask("b", "GET", "/runs/quick/trace")
        ENDS.set()

    assert run.json()["status"] == "completed", run.text
    assert trace.status_code == 200


@pytest.mark.parametrize("count", [10, 11])
async def test_a_list_takes_at_most_ten_metadata_filters(database_url: str, count: int) -> None:
    """More filters get a 422, in lists and in cancel requests."""
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


ROUTE = {"when": {"path": "default", "op": "exists"}, "to": "o"}
QUICK = {"steps": [{"id": "r", "type": "router", "data": {"routes": [ROUTE]}}], "edges": []}
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


async def test_tenants_alternate_where_there_is_one_run_slot(
    database_url: str, fake: FakeProvider
) -> None:
    """Of six queued runs of one tenant and a later one of another tenant, that one runs second."""
    small = SmallModelSettings(provider="openai", base_url=fake.openai_url, model="fake-small")
    async with open_tenants(
        database_url,
        executes=True,
        models=ModelsSettings(small=small),
        worker=WorkerSettings(max_runs=1),
    ) as tenants:
        await fake.script("slot", [Step(hang=True)], repeat_last=True)
        held = {"kind": "agent", "agent": SLOW, "input": "[slot]", "run_id": "a0"}
        await tenants.ask("a", "POST", "/runs", held)
        await fake.wait_for_arrivals(1, containing="[slot]")
        for tenant, run_id in [*(("a", f"a{n}") for n in range(1, 6)), ("b", "b0")]:
            body: dict[str, Any] = {"kind": "graph", "graph": QUICK, "run_id": run_id}
            body["inputs"] = {"default": 1}
            await tenants.ask(tenant, "POST", "/runs", body)
        await tenants.ask("a", "POST", "/runs/cancel", {"kind": "agent"})

        started = {}
        for run_id in ["b0", *(f"a{n}" for n in range(6))]:
            run: dict[str, Any] = {"finished_at": None}
            while run["finished_at"] is None:  # a stream ends with its run, or if it gets too old
                await tenants.ask(run_id[0], "GET", f"/runs/{run_id}/events")
                run = (await tenants.ask(run_id[0], "GET", f"/runs/{run_id}")).json()
            started[run_id] = run["started_at"]

    assert sorted(started, key=started.__getitem__)[:3] == ["a0", "b0", "a1"]


POST = (
    b"POST /runs HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Authorization: Bearer %s\r\nContent-Length: %d\r\n\r\n"
)
BODY = b'{"input": "2+2?"}'


@asynccontextmanager
async def open_connections(url: str, size: int) -> AsyncIterator[tuple[Served, Tenants]]:
    """Run a service that accepts at most ``size`` connections."""
    settings = ServerSettings(max_connections=size)
    async with (
        open_tenants(url, server=settings) as tenants,
        served(tenants.app, max_connections=size) as server,
    ):
        for tenant in "abc":
            await tenants.ask(tenant, "GET", "/runs")
        yield server, tenants


def posted(tenants: Tenants, tenant: str) -> bytes:
    """Return a request without its last bytes, so that it holds a connection."""
    return POST % (tenants.keys[tenant].encode(), len(BODY)) + BODY[:-1]


async def test_a_tenant_leaves_connections_to_other_tenants(database_url: str) -> None:
    """Of three connections it holds two; a third request is 503."""
    async with open_connections(database_url, 3) as (server, tenants):
        for count in (1, 2):
            await server.connect(posted(tenants, "a"))
            await server.identified(count)

        refused = await (await server.connect(posted(tenants, "a"))).answer()
        served_ = await (await server.connect(posted(tenants, "b") + b"}")).answer()

    assert refused.startswith(b"HTTP/1.1 503")
    assert b"too-many-connections" in refused
    assert served_.startswith(b"HTTP/1.1 202")


async def test_a_connection_too_many_is_refused_while_all_others_are_at_work(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two connections are served and one waits; the next one gets a 503 with a retry delay."""
    monkeypatch.setattr(shares, "WAIT_SECONDS", 150.0)
    async with open_connections(database_url, 2) as (server, tenants):
        for count, tenant in enumerate("abc", 1):
            await server.connect(posted(tenants, tenant))
            await server.identified(count)

        said = await server.ask(b"")

    assert said.startswith(b"HTTP/1.1 503")
    assert b"too-many-connections" in said
    assert b"\r\nretry-after: 2\r\n" in said


async def test_tenants_alternate_where_there_is_one_connection(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request of another tenant waits and is next."""
    monkeypatch.setattr(shares, "WAIT_SECONDS", 150.0)
    async with open_connections(database_url, 1) as (server, tenants):
        first = await server.connect(posted(tenants, "a"))
        await server.identified(1)
        second = await server.connect(posted(tenants, "b") + b"}")
        await server.identified(2)
        refused = await tenants.ask("a", "GET", "/runs")
        waiting = asyncio.create_task(second.answer())
        await asyncio.wait([waiting], timeout=0)
        waited = not waiting.done()

        await first.send(b"}")

        assert (await first.answer()).startswith(b"HTTP/1.1 202")
        assert (await waiting).startswith(b"HTTP/1.1 202")
    assert waited
    assert refused.status_code == 503


async def test_a_refused_credential_delays_its_sender_alone(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refused request's answer waits, and a request with a valid key does not."""
    monkeypatch.setattr(authentication, "REFUSALS_PER_SECOND", 0.001)
    monkeypatch.setattr(authentication, "MAX_REFUSAL_SECONDS", 3600.0)
    async with open_tenants(database_url) as tenants:
        guess = {"Authorization": f"Bearer cwk_{'0' * 16}_{'0' * 64}"}
        refused = [
            asyncio.create_task(tenants.client.get("/runs", headers=headers))
            for headers in (guess, {"Authorization": "Bearer x"}, {})
        ]

        answer = await tenants.ask("a", "GET", "/runs")
        waited = not any(task.done() for task in refused)

        for task in refused:
            task.cancel()
        await asyncio.wait(refused)
    assert answer.status_code == 200
    assert waited


@pytest.mark.parametrize("path", ["/healthz", "/runs", "/nowhere"])
async def test_a_query_of_too_many_parameters_is_refused_before_it_is_parsed(
    path: str, database_url: str
) -> None:
    """The refusal is the same wherever it is sent, and needs no credential."""
    async with open_tenants(database_url) as tenants:
        most = "&".join(["x=1"] * MAX_QUERY_PARAMETERS)

        answer = await tenants.client.get(f"{path}?{most}&x=1")
        passed = await tenants.client.get(f"/healthz?{most}")

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "query"
    assert passed.status_code == 200


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
