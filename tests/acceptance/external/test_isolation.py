"""The key of a run tries every route, and two tenants try each other's runs, keys and attempts."""

from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
import pytest

from tests.support.external import OPENAI, Agent, start
from tests.support.external_routes import operations, tried
from tests.support.fake_provider.client import FakeProvider
from tests.support.service import ServiceProcess

REFUSED = {401, 403}
HIDDEN = {401, 403, 404}
OWN = {
    "POST /runs": 202,
    "GET /runs/{run_id}": 200,
    "GET /runs/{run_id}/trace": 200,
    "POST /runs/{run_id}/heartbeat": 200,
    "POST /runs/{run_id}/finish": 200,
}
"""Permitted operations with the status of the response; ``POST /runs`` creates a child."""
CANCELS = {"DELETE /runs/{run_id}", "POST /runs/{run_id}/cancel"}
"""They are stored for a run that does not exist yet."""
GATEWAY = " /gateway/"
"""Operations for the keys of runs; other tests send them bodies."""
OTHER_FACES = ("GET /mcp", "POST /mcp", "GET /metrics")


@pytest.fixture
def one(http: httpx.AsyncClient) -> httpx.AsyncClient:
    """Return a client of the first tenant."""
    return http


@pytest.fixture
async def two(
    service: ServiceProcess, tenant_keys: Mapping[str, str]
) -> AsyncIterator[httpx.AsyncClient]:
    async with service.http(tenant_keys["two"]) as opened:
        yield opened


async def state_of(*agents: Agent) -> list[Any]:
    """Return the fields that no foreign request may change."""
    runs = [(await each.get()).json() for each in agents]
    names = ("status", "cancel_requested", "result", "stop")
    return [[run["usage"]["tokens"], *(run.get(name) for name in names)] for run in runs]


@pytest.mark.req("cw/15.create")
async def test_the_key_of_a_run_reaches_its_own_run_and_nothing_else(
    one: httpx.AsyncClient, two: httpx.AsyncClient, service: ServiceProcess
) -> None:
    """Each operation is tried with its own run and with runs of both tenants."""
    mine, sibling, foreign = await start(one), await start(one), await start(two)
    for each in (mine, sibling, foreign):
        await each.ask()
    before = await state_of(sibling, foreign)
    every = [*await operations(one), *OTHER_FACES]
    with_run = [each for each in every if "{run_id}" in each]
    async with (
        service.http() as nobody,
        service.http(mine.key) as agent,
    ):
        public = {each for each in every if await tried(nobody, each, mine.run_id) != 401}
        strange = {
            (operation, run.run_id): await tried(agent, operation, run.run_id)
            for operation in with_run
            for run in (sibling, foreign)
        }
        others = {
            operation: await tried(agent, operation, mine.run_id)
            for operation in every
            if operation not in OWN and operation not in public and GATEWAY not in operation
        }
        own = {operation: await tried(agent, operation, mine.run_id) for operation in OWN}

    assert len(every) > 60
    assert len(with_run) > 10
    assert not public & (set(with_run) | set(OWN)), public
    assert set(strange.values()) <= HIDDEN, strange
    assert set(others.values()) <= REFUSED, others
    assert own == OWN
    assert await state_of(sibling, foreign) == before


async def test_the_key_of_a_run_gets_no_other_run_by_naming_it_in_a_body(
    one: httpx.AsyncClient, two: httpx.AsyncClient, service: ServiceProcess
) -> None:
    """It can open no attempt of another run, import no recorded reply, and name no parent."""
    mine, sibling, foreign = await start(one), await start(one), await start(two)
    for each in (sibling, foreign):
        await each.ask("RECORDED")
    before = await state_of(mine, sibling, foreign)
    replies = []
    async with service.http(mine.key) as agent:
        for run in (sibling, foreign):
            replies += [
                await agent.post("/runs", json=body)
                for body in (
                    {"kind": "external", "parent": {"run_id": run.run_id}},
                    {"from": {"run_id": run.run_id}},
                    {"kind": "external", "from": {"run_id": run.run_id}},
                    {"kind": "case", "input": "2 + 2?"},
                    {"kind": "graph", "graph": {"name": "x"}},
                )
            ]
        attempt = await agent.post("/runs", json={"kind": "external", "run_id": sibling.run_id})

    assert all(400 <= each.status_code < 500 for each in replies), [each.text for each in replies]
    assert attempt.status_code == 409, attempt.text
    assert "access" not in attempt.json()
    assert await state_of(mine, sibling, foreign) == before


async def test_tenants_cannot_use_the_runs_attempts_and_keys_of_each_other(
    one: httpx.AsyncClient,
    two: httpx.AsyncClient,
    service: ServiceProcess,
    provider: FakeProvider,
) -> None:
    """The same run ID names a run of each tenant; replies, attempts and budgets stay apart."""
    body = {"kind": "external", "run_id": "shared", "budget": {"max_llm_calls": 2}}
    mine = Agent(http=one, run=(await one.post("/runs", json=body)).json())
    await mine.ask("SHARED")
    before = await state_of(mine)
    of_runs = [each for each in await operations(two) if "{run_id}" in each]
    absent, present = [
        {each: await tried(two, each, name) for each in of_runs if each not in CANCELS}
        for name in ("absent", "shared")
    ]
    after = await state_of(mine)
    bodies = ({"from": {"run_id": "shared"}}, {"kind": "external", "parent": {"run_id": "shared"}})
    missing = [(await two.post("/runs", json=each)).status_code for each in bodies]
    opened = [(await two.post("/runs", json=body)).json() for _ in range(2)]
    theirs = Agent(http=two, run=opened[-1])
    made = [await theirs.ask("SHARED"), await theirs.ask("SHARED")]
    still = await mine.ask("SHARED again")
    async with service.http(mine.key) as agent:
        shown = (await agent.get("/runs/shared")).json()["usage"]

    assert absent == present  # as if it did not exist
    assert after == before
    assert missing == [404, 404]
    assert theirs.run["attempt"] == 2
    assert [each.status_code for each in made] == [200, 200]
    assert still.status_code == 200  # neither superseded nor charged for the other tenant
    assert shown["llm_calls"] == 2
    assert await provider.count("SHARED") == 4  # no reply of the other tenant was replayed
    assert OPENAI.error_of(await mine.ask("SHARED no more"))["code"] == "budget"


@pytest.mark.parametrize("end", ["finish", "cancel", "fail"])
async def test_the_end_of_a_run_leaves_the_children_of_other_tenants_alone(
    end: str, one: httpx.AsyncClient, two: httpx.AsyncClient
) -> None:
    """Both tenants have a parent, a child and a grandchild with the same names in one process."""
    names = [f"{end}-{level}" for level in ("parent", "child", "grandchild")]
    family: dict[httpx.AsyncClient, list[Agent]] = {one: [], two: []}
    for http, agents in family.items():
        for name in names:
            above: dict[str, Any] = {"parent": {"run_id": agents[-1].run_id}} if agents else {}
            agents.append(await start(http, run_id=name, **above))
    ends: dict[str, Any] = {
        "finish": {"output": 1},
        "fail": {"error": {"class": "E", "message": "no"}},
    }
    if end == "cancel":
        await one.delete(f"/runs/{names[0]}")
    else:
        await family[one][0].finish(ends[end])
    ended = [(await each.ended())["status"] for each in family[one][1:]]
    beats = [await two.post(f"/runs/{name}/heartbeat") for name in names]

    assert ended == ["cancelled", "cancelled"]
    assert [each.json()["status"] for each in beats] == ["running"] * 3
    assert (await family[two][2].ask("still here")).status_code == 200
    await two.delete(f"/runs/{names[0]}")
