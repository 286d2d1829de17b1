"""A tenant that fills everything refuses nothing to another tenant, and shows it nothing.

One tenant draws loads of every kind, and holds them: bodies of all sizes without their last byte,
streams, waiting requests, runs that block threads or wait, full queues, and all routes with the
IDs of the other tenant. Callers without identity do the same. The other tenant then makes ordinary
requests. All limits are small, so that a few loads reach them.
"""

import asyncio
import itertools
import json
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from caseworker import ToolContext, tool
from caseworker.settings.admission import AdmissionSettings
from caseworker.settings.schema import (
    CancellationSettings,
    DatabaseSettings,
    EventSettings,
    GatewaySettings,
    ServerSettings,
    WorkerSettings,
)
from caseworker.settings.tools import ToolSettings
from tests.support.api import openapi_document
from tests.support.database import TestServer
from tests.support.served import Served, Talk, served
from tests.support.stores import eventually
from tests.support.tenants import Tenants, open_tenants, stable_answer

MARK = "text-of-the-first-tenant"
"""Part of every text and ID of the tenant that makes the loads."""
ENDS = threading.Event()


@tool
def blocks(context: ToolContext) -> str:
    """Wait in a thread until the test ends."""
    ENDS.wait()
    return context.run_id


def step(kind: str, **data: Any) -> dict[str, Any]:
    steps = [{"id": "s", "type": kind, "data": data}]
    return {"kind": "graph", "graph": {"steps": steps, "edges": []}}


BLOCKS = step("tool", tool="blocks", args={})
WAITS = step("approval", message=MARK)
QUICK = step("tool", tool="calculator", args={"expression": "1 + 1"})
LATER = {**QUICK, "start_at": "2999-01-01T00:00:00Z"}
SIZES = st.one_of(st.integers(2, 200_000), st.sampled_from([65_536, 262_144, 300_000, 1_300_000]))


class LoadedService:
    """A service with small limits, and the loads that are held."""

    def __init__(self, tenants: Tenants, server: Served, database_url: str) -> None:
        self.tenants, self.server, self.url = tenants, server, database_url
        self.loads = set[asyncio.Task[object]]()
        self.talks = list[Talk]()
        self.numbers = itertools.count()

    def hold(self, work: Awaitable[object]) -> None:
        """Keep a load going in the background."""
        self.loads.add(asyncio.ensure_future(work))

    async def ask(self, tenant: str, method: str, path: str, body: Any = None) -> httpx.Response:
        """Send a request of a tenant."""
        return await self.tenants.ask(tenant, method, path, body)

    async def trickle(self, path: str, key: str, size: int) -> None:
        """Send a body without its last byte on a connection that stays open."""
        lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
        lines += [f"Authorization: Bearer {key}", f"Content-Length: {size}", "", ""]
        head = "\r\n".join(lines).encode()
        body = json.dumps({"input": "x" * size}).encode()[: size - 1]
        talk = await self.server.connect(head)
        self.hold(talk.send(body))
        self.talks.append(talk)

    async def clear(self) -> None:
        """End all loads."""
        ENDS.set()
        for talk in self.talks:
            await talk.close()
        for load in self.loads:
            load.cancel()
        if self.loads:
            await asyncio.wait(self.loads)
        self.loads.clear()
        self.talks.clear()


Load = Callable[[LoadedService, str, str], Awaitable[object]]
"""A load of a tenant, on another tenant whose name is the last argument."""


def runs(body: dict[str, Any], count: int, *, wait: bool = False) -> Load:
    async def load(world: LoadedService, mine: str, other: str) -> None:
        headers = {"prefer": "wait=30"} if wait else {}
        for _ in range(count):
            named = {"run_id": f"{MARK}-{next(world.numbers)}", "metadata": {"mark": MARK}}
            made = world.tenants.ask(mine, "POST", "/runs", {**body, **named}, **headers)
            if wait:
                world.hold(made)
            else:
                await made

    return load


def streams(count: int) -> Load:
    async def load(world: LoadedService, mine: str, other: str) -> None:
        run_id = f"{MARK}-streamed"
        await world.ask(mine, "POST", "/runs", {**WAITS, "run_id": run_id})
        for _ in range(count):
            key = world.tenants.keys[mine]
            head = f"GET /runs/{run_id}/events HTTP/1.1\r\nHost: localhost\r\n"
            head += f"Authorization: Bearer {key}\r\n\r\n"
            world.talks.append(await world.server.connect(head.encode()))

    return load


def bodies(size: int, count: int) -> Load:
    async def load(world: LoadedService, mine: str, other: str) -> None:
        for _ in range(count):
            await world.trickle("/runs", world.tenants.keys[mine], size)

    return load


def gateway_bodies(size: int, count: int) -> Load:
    async def load(world: LoadedService, mine: str, other: str) -> None:
        run = await world.ask(mine, "POST", "/runs", {"kind": "external"})
        key = run.json().get("access", {}).get("key", "cwr_x")
        for _ in range(count):
            await world.trickle("/gateway/openai/v1/chat/completions", key, size)

    return load


def unidentified(size: int, key: str) -> Load:
    async def load(world: LoadedService, mine: str, other: str) -> None:
        for path in ("/runs", "/gateway/openai/v1/chat/completions", "/mcp", "/nowhere"):
            await world.trickle(path, key, size)

    return load


def many(method: str, path: str, body: Any, *, count: int) -> Load:
    async def load(world: LoadedService, mine: str, other: str) -> None:
        for _ in range(count):
            name = f"{MARK}-{next(world.numbers)}"
            world.hold(world.ask(mine, method, path.format(name), body))

    return load


SCHEDULE = {"cron": "* * * * *", "run": QUICK}
AGENT = {"agent": {"name": MARK, "prompt": {"system": MARK}, "tools": []}}
COUNTS = st.integers(1, 12)
LOADS: st.SearchStrategy[Load] = st.one_of(
    st.builds(runs, st.sampled_from([BLOCKS, WAITS, QUICK, LATER]), COUNTS, wait=st.booleans()),
    st.builds(runs, st.just({"kind": "external"}), COUNTS),
    st.builds(streams, COUNTS),
    st.builds(bodies, SIZES, COUNTS),
    st.builds(gateway_bodies, SIZES, COUNTS),
    st.builds(unidentified, SIZES, st.sampled_from(["cwr_x", f"cwk_{'0' * 16}_{'0' * 64}", "a.b"])),
    st.builds(
        lambda request, count: many(request[0], request[1], request[2], count=count),
        st.sampled_from(
            [
                ("DELETE", "/runs/{}", None),
                ("PUT", "/schedules/{}", SCHEDULE),
                ("POST", "/agents", AGENT),
                ("POST", "/keys", {"name": MARK, "scopes": ["read"]}),
                ("GET", "/spend?group_by=model", None),
                ("GET", "/statistics?period=day", None),
                ("GET", "/runs?limit=100", None),
                ("POST", "/webhooks/secret", None),
            ]
        ),
        COUNTS,
    ),
)


def routes() -> Iterator[tuple[str, str]]:
    """Yield the method and the template of each route."""
    for template, described in openapi_document()["paths"].items():
        for method in described:
            yield method.upper(), template


ROUTES = sorted(routes())
NAMED = [(method, path) for method, path in ROUTES if "{" in path]


def filled(template: str, name: str) -> str:
    """Return the path of a route with one name in all its places."""
    return "/".join(name if each.startswith("{") else each for each in template.split("/"))


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[LoadedService]:
    """Open a service whose limits are a few requests, runs and streams."""
    ENDS.clear()
    async with (
        open_tenants(
            url,
            executes=True,
            server=ServerSettings(max_connections=20, max_bodies_mb=2),
            gateway=GatewaySettings(max_body_kb=1024),
            events=EventSettings(max_streams=4),
            database=DatabaseSettings(pool_size=4, control_pool_size=3),
            worker=WorkerSettings(max_runs=4),
            admission=AdmissionSettings(max_queued=10, max_external_runs=4, max_schedules=5),
            cancellation=CancellationSettings(max_early_intents=4),
            tools=ToolSettings(plugins=(f"{__name__}:blocks",)),
        ) as tenants,
        served(tenants.app, max_connections=20) as server,
    ):
        world = LoadedService(tenants, server, url)
        try:
            yield world
        finally:
            await world.clear()


async def require_served(world: LoadedService, mine: str) -> None:
    """Make ordinary requests of a tenant; none may be refused, or show another tenant."""
    key, number = world.tenants.keys[mine], next(world.numbers)
    run_id, early = f"run-{number}", f"early-{number}"
    headers, wait = {"authorization": f"Bearer {key}"}, {"prefer": "wait=30"}
    address = f"http://127.0.0.1:{world.server.port}"
    alone = httpx.Limits(max_keepalive_connections=0)  # the oldest idle connections are closed
    async with httpx.AsyncClient(
        base_url=address, headers=headers, timeout=150, limits=alone
    ) as http:
        answers = [
            await http.post("/runs", json={**QUICK, "run_id": run_id}, headers=wait),
            await http.get(f"/runs/{run_id}/events"),
            await http.get(f"/runs/{run_id}/trace"),
            await http.post("/runs", json={"kind": "external"}),
            await http.delete(f"/runs/{early}"),
            await http.post("/runs", json=LATER),
            await http.put(f"/schedules/{early}", json=SCHEDULE),
            await http.post("/runs", json={**QUICK, "input": "x" * 200_000}),
            *[
                await http.get(path)
                for path in ("/runs", "/approvals", "/agents", "/schedules", "/quotas", "/audit")
            ],
            *[
                await http.get(path)
                for path in ("/spend?group_by=model", "/statistics?period=day", "/healthz")
            ],
        ]
    refused = [each for each in answers if each.status_code in (429, 503) or each.is_server_error]
    assert [(each.request.url.path, each.text) for each in refused] == []
    assert answers[0].json()["status"] == "completed", answers[0].text
    assert not any(MARK in each.text for each in answers)


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(loads=st.lists(LOADS, min_size=3, max_size=10))
def test_a_tenant_is_served_whatever_loads_another_one_makes(
    postgres: TestServer, loads: list[Load]
) -> None:
    """No request is refused, the run ends, and nothing of the other tenant is shown."""
    play(postgres, loads)


@pytest.mark.proof
@given(loads=st.lists(LOADS, min_size=3, max_size=25))
@settings(deadline=None, suppress_health_check=list(HealthCheck), max_examples=200)
def test_a_tenant_is_served_whatever_many_loads_another_one_makes(
    postgres: TestServer, loads: list[Load]
) -> None:
    """The same, with longer sequences."""
    play(postgres, loads)


def play(postgres: TestServer, loads: list[Load]) -> None:
    """Open a service, make the loads, and serve another tenant next to them."""

    async def story(url: str) -> None:
        async with opened(url) as world:
            for tenant in ("first", "second"):
                await world.ask(tenant, "GET", "/runs")
            for load in loads:
                await load(world, "first", "second")
                await asyncio.sleep(0)
            await require_served(world, "second")

    with postgres.database() as url:
        asyncio.run(story(url))


@pytest.mark.parametrize(
    "load", [BLOCKS, WAITS, {"kind": "external"}], ids=["threads", "approvals", "external"]
)
async def test_each_kind_of_run_alone_leaves_the_other_tenant_its_share(
    database_url: str, load: dict[str, Any]
) -> None:
    """Twenty runs of one tenant fill all that it may have."""
    async with opened(database_url) as world:
        for tenant in ("first", "second"):
            await world.ask(tenant, "GET", "/runs")
        await runs(load, 20)(world, "first", "second")
        await require_served(world, "second")


async def test_the_ids_of_another_tenant_are_unknown_on_every_route(database_url: str) -> None:
    """Each answer equals that for an ID that no tenant has, and changes nothing."""
    async with opened(database_url) as world:
        name = f"{MARK}-x"
        await world.ask("second", "GET", "/runs")
        made = [
            await world.ask("first", method, path, body)
            for method, path, body in (
                ("POST", "/runs", {**WAITS, "run_id": name}),
                ("POST", "/graphs", {"name": name, "graph": QUICK["graph"]}),
                ("POST", "/agents", {"agent": {**AGENT["agent"], "name": name}}),
                ("POST", "/threads", {"thread_id": name, "graph": QUICK["graph"]}),
                ("PUT", f"/schedules/{name}", {**SCHEDULE, "cron": "0 0 1 1 *"}),
            )
        ]
        await eventually(lambda: is_waiting(world, name))
        before = await seen(world)
        different = []
        for method, template in NAMED:
            for body in (None, {}, {"content": "x"}, {"decision": "approve"}, {"output": 1}):
                if body is not None and method in ("GET", "HEAD"):
                    continue
                real, unknown = [
                    stable_answer(
                        await world.ask("second", method, filled(template, each), body), {each: "*"}
                    )
                    for each in (name, "unknown-name")
                ]
                if real != unknown:
                    different.append((method, template, body, real, unknown))

        assert [each.status_code for each in made] == [202, 201, 201, 201, 201], made
        assert different == []
        assert await seen(world) == before


async def is_waiting(world: LoadedService, run_id: str) -> bool:
    """Return whether a run of the first tenant waits for its approval."""
    return bool((await world.ask("first", "GET", f"/runs/{run_id}")).json()["status"] == "waiting")


async def seen(world: LoadedService) -> list[str]:
    """Return the resources of the first tenant."""
    paths = ("/runs", "/graphs", "/agents", "/threads", "/schedules", "/keys", "/approvals")
    return [stable_answer(await world.ask("first", "GET", path), {})[1] for path in paths]
