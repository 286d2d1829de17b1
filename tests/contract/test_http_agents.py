"""The resource /agents, and runs of kind agent (spec, section 10)."""

from typing import Any

import httpx
import pytest

from caseworker.nodes.nesting import DefinitionKind
from caseworker.runs.run import DefinitionRef, Run, RunKind
from tests.support.api import Api, client_of
from tests.support.graph_requests import fields, problem_of

pytestmark = pytest.mark.asyncio(loop_scope="module")


HELPER: dict[str, Any] = {
    "name": "helper",
    "description": "Helps",
    "prompt": {"system": "Help with ${topic}."},
    "inputs": {"topic": {"type": "string"}},
    "tools": ["calculator"],
}
CHIEF: dict[str, Any] = {
    "name": "chief",
    "prompt": {"system": "Have others work."},
    "tools": [{"agent": {"name": "helper"}}],
}
ASKED: dict[str, Any] = {"run_id": "r", "kind": "agent", "input": "6 times 7?"}


async def register(client: httpx.AsyncClient, agent: dict[str, Any]) -> httpx.Response:
    return await client.post("/agents", json={"agent": agent})


async def run(client: httpx.AsyncClient, agent: dict[str, Any], **more: Any) -> httpx.Response:
    return await client.post("/runs", json={**ASKED, "agent": agent, **more})


def agent_of(run: Run) -> dict[str, Any]:
    """Return the agent that a run executes."""
    assert run.request.graph is not None
    agent: dict[str, Any] = run.request.graph["steps"][0]["data"]["agent"]
    return agent


@pytest.mark.parametrize(
    ("agent", "missing"),
    [
        ({"name": "new"}, ["agent.prompt"]),
        ({"name": "new", "version": 1}, ["agent.prompt"]),
        ({"name": "new", "tools": ["no_tool"]}, ["agent.prompt", "agent.tools.0"]),
    ],
)
async def test_an_agent_without_a_prompt_is_told_so(
    client: httpx.AsyncClient, agent: dict[str, Any], missing: list[str]
) -> None:
    """The error names the missing fields; a run with only a name looks up that name instead."""
    refused = await register(client, agent)
    asked = await run(client, agent)

    assert sorted(fields(refused)) == missing
    assert sorted(fields(asked)) == (missing if "tools" in agent else ["agent.name"])


@pytest.mark.req("003/FR1.1", "003/FR4.1")
async def test_an_agent_is_registered_read_listed_and_deleted(client: httpx.AsyncClient) -> None:
    """As for graphs, every change is a version, and numbers are not reused."""
    first = await register(client, HELPER)
    again = await register(client, HELPER)
    second = await register(client, {**HELPER, "description": "Helps more"})
    newest = (await client.get("/agents/helper")).json()
    old = (await client.get("/agents/helper/versions/1")).json()
    listed = (await client.get("/agents")).json()["agents"]
    versions = (await client.get("/agents/helper/versions")).json()["agents"]
    gone = await client.delete("/agents/helper")
    third = await register(client, HELPER)

    assert (first.status_code, first.headers["location"]) == (201, "/agents/helper/versions/1")
    assert (again.status_code, again.json()["version"]) == (200, 1)
    assert (newest["version"], old["agent"]) == (second.json()["version"], HELPER)
    assert newest["description"] == newest["agent"]["description"] == "Helps more"
    assert [(one["name"], one["version"]) for one in listed] == [("helper", 2)]
    assert [one["version"] for one in versions] == [2, 1]
    assert (gone.status_code, third.json()["version"]) == (204, 3)


async def test_what_is_not_there_is_a_problem_of_agents(client: httpx.AsyncClient) -> None:
    """A graph with that name makes no difference."""
    await client.post("/graphs", json={"name": "g", "graph": {"steps": [], "edges": []}})

    for answer in (await client.get("/agents/g"), await client.delete("/agents/g/versions/1")):
        assert (answer.status_code, problem_of(answer)) == (404, "agent-not-found")


@pytest.mark.req("003/FR1.2")
@pytest.mark.parametrize(
    ("wrong", "place"),
    [
        ({"name": "no name"}, "agent.name"),
        ({"prompt": {"system": "${color}"}}, "agent.prompt.system"),
        ({"tools": ["calculater"]}, "agent.tools.0"),
        ({"tools": ["calculator", "calculator"]}, "agent.tools.1"),
        ({"tools": [{"agent": {"name": "nobody"}}]}, "agent.tools.0.agent.name"),
        ({"tools": [{"mcp": "nowhere"}]}, "agent.tools.0.mcp"),
        ({"limits": {"max_turns": -1}}, "agent.limits.max_turns"),
        ({"inputs": {"topic": {"type": "text"}}}, "agent.inputs.topic.type"),
        ({"output": {"schema": {"type": "nothing"}}}, "agent.output.schema"),
        ({"goal": "win"}, "agent.goal"),
    ],
)
async def test_a_wrong_agent_is_refused_with_the_place(
    client: httpx.AsyncClient, wrong: dict[str, Any], place: str
) -> None:
    """Registering it and running it give the same error."""
    registered = await register(client, HELPER | wrong)
    ran = await run(client, HELPER | wrong, inputs={"topic": "sums"})

    assert fields(registered) == [place]
    assert fields(ran) == [place]


@pytest.mark.req("003/FR4.2")
@pytest.mark.parametrize(
    "changed",
    [
        {"description": "Helps more"},
        {"prompt": {"system": "Help."}, "inputs": {}},
        {"prompt": "Help with ${topic}."},
        {"tools": []},
        {"limits": {"max_turns": 3}},
    ],
)
async def test_a_name_that_is_posted_twice_never_replaces_an_agent(
    client: httpx.AsyncClient, api: Api, changed: dict[str, Any]
) -> None:
    """In the registry of a tenant, the second definition becomes the next version."""
    await register(client, HELPER)
    await run(client, {"name": "helper"}, inputs={"topic": "sums"})

    second = await register(client, HELPER | changed)
    repeated = await register(client, HELPER | changed)

    assert (second.status_code, second.json()["version"]) == (201, 2)
    assert (repeated.status_code, repeated.json()["version"]) == (200, 2)
    assert agent_of(await api.stored()) == {**HELPER, "version": 1}
    async with client_of(api.app()) as other:  # another process of the installation
        listed = (await other.get("/agents")).json()["agents"]
        versions = [(await other.get(f"/agents/helper/versions/{n}")).json() for n in (1, 2)]
    assert [(one["name"], one["version"]) for one in listed] == [("helper", 2)]
    assert [one["agent"] for one in versions] == [HELPER, HELPER | changed]


@pytest.mark.req("003/FR4.2")
async def test_agents_may_not_contain_one_another_in_a_circle(client: httpx.AsyncClient) -> None:
    """The error names the cycle, and nothing is registered."""
    await register(client, HELPER)
    await register(client, CHIEF)

    answer = await register(client, {**HELPER, "tools": [{"agent": {"name": "chief"}}]})

    assert fields(answer) == ["agent.tools.0.agent.tools.0.agent"]
    message = answer.json()["errors"][0]["message"]
    assert message == "Circular reference: helper -> chief@1 -> helper."


async def test_an_agent_in_use_stays(client: httpx.AsyncClient) -> None:
    """A reference from another agent or from a step of a graph keeps it."""
    await register(client, HELPER)
    step = {"id": "a", "type": "agent", "data": {"agent": {"name": "helper", "version": 1}}}
    graph = {"steps": [step], "edges": []}
    await register(client, CHIEF)
    await client.post("/graphs", json={"name": "flow", "graph": graph})

    refused = await client.delete("/agents/helper")
    await client.delete("/agents/chief")
    still = await client.delete("/agents/helper")
    await client.delete("/graphs/flow")

    assert (refused.status_code, problem_of(refused)) == (409, "agent-in-use")
    assert "chief@1" in refused.json()["detail"]
    assert (still.status_code, problem_of(still)) == (409, "agent-in-use")
    assert (await client.delete("/agents/helper")).status_code == 204


@pytest.mark.req("003/FR1.1")
async def test_a_run_keeps_the_agent_it_was_accepted_with(
    client: httpx.AsyncClient, api: Api
) -> None:
    """The run stores the agent with all agents among its tools."""
    await register(client, HELPER)
    await register(client, CHIEF)
    accepted = await run(client, {"name": "chief"})
    await register(client, {**HELPER, "description": "Helps more"})
    later = await run(client, {"name": "chief", "version": 1}, run_id="later")

    assert (accepted.status_code, accepted.json()["kind"]) == (202, "agent")
    assert accepted.json()["agent"] == later.json()["agent"] == {"name": "chief", "version": 1}
    assert accepted.json()["graph"] is None
    kept = await api.stored()
    assert kept.request.kind is RunKind.AGENT
    assert kept.request.definition_ref == DefinitionRef("chief", 1, DefinitionKind.AGENT)
    [inner] = (use["agent"] for use in agent_of(kept)["tools"])
    assert inner == {**HELPER, "version": 1}
    [inner] = (use["agent"] for use in agent_of(await api.stored("later"))["tools"])
    assert (inner["description"], inner["version"]) == ("Helps more", 2)
    listed = (await client.get("/runs?agent=chief")).json()["runs"]
    assert [one["run_id"] for one in listed] == ["later", "r"]


@pytest.mark.req("003/FR1.3")
@pytest.mark.parametrize(
    ("sent", "place"),
    [
        ({}, "inputs.topic"),
        ({"inputs": {"topic": 3}}, "inputs.topic"),
        ({"inputs": {"topic": "sums", "tone": "dry"}}, "inputs.tone"),
        ({"inputs": {"topic": "sums"}, "input": None}, "input"),
        ({"inputs": {"topic": "sums"}, "input": ""}, "input"),
        ({"inputs": {"topic": "sums"}, "input": " \n"}, "input"),
        (
            {
                "inputs": {"topic": "sums"},
                "input": " ",
                "messages": [{"role": "user", "content": "?"}],
            },
            "input",
        ),
        (
            {"inputs": {"topic": "sums"}, "messages": [{"role": "user", "content": " "}]},
            "messages.0.content",
        ),
        (
            {
                "inputs": {"topic": "sums"},
                "input": None,
                "messages": [{"role": "assistant", "content": "Hello"}],
            },
            "messages",
        ),
        ({"inputs": {"topic": "sums"}, "messages": []}, "messages"),
        (
            {"inputs": {"topic": "sums"}, "messages": [{"role": "system", "content": "x"}]},
            "messages.0.role",
        ),
        ({"agent": {"name": "nobody"}}, "agent.name"),
        ({"agent": {"name": "helper", "version": 2}}, "agent.version"),
        ({"inputs": {"topic": "sums"}, "mode": "escalate"}, "mode"),
    ],
)
async def test_what_an_agent_cannot_be_run_with_is_named(
    client: httpx.AsyncClient, sent: dict[str, Any], place: str
) -> None:
    """The request is refused before the run is accepted."""
    await register(client, HELPER)

    answer = await client.post("/runs", json={**ASKED, "agent": {"name": "helper"}, **sent})

    assert fields(answer) == [place]
    assert (await client.get("/runs/r")).status_code == 404


async def test_a_run_is_given_what_was_said_before(client: httpx.AsyncClient, api: Api) -> None:
    """Earlier messages can be sent with or without a new input."""
    said = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]
    agent = {"name": "a", "prompt": {}}

    answer = await run(client, agent, messages=said)
    alone = await run(client, agent, messages=said[:1], input=None, run_id="alone")
    asks = {**agent, "prompt": {"messages": [{"role": "user", "content": "Well?"}]}}
    goes_on = await run(client, asks, messages=said[1:], input=None, run_id="goes-on")

    assert (answer.status_code, alone.status_code, goes_on.status_code) == (202, 202, 202)
    assert (await api.stored()).request.inputs == {"default": "6 times 7?", "messages": said}
    assert (await api.stored("alone")).request.inputs == {"messages": said[:1]}


async def test_a_run_goes_on_from_one_of_an_agent_with_another_agent(
    client: httpx.AsyncClient, api: Api
) -> None:
    """Omitted fields keep the values of the source run; a new agent replaces its agent."""
    await register(client, HELPER)
    await run(client, {"name": "helper"}, inputs={"topic": "sums"})
    await client.delete("/runs/r")
    source = {"run_id": "r"}

    same = await client.post("/runs", json={"run_id": "same", "from": source})
    other = await client.post(
        "/runs",
        json={"run_id": "other", "from": source, "agent": {**HELPER, "model": {"tier": "big"}}},
    )
    strange = await client.post("/runs", json={"from": source, "inputs": {"tone": "dry"}})

    assert (same.status_code, other.status_code) == (202, 202)
    assert agent_of(await api.stored("same")) == agent_of(await api.stored())
    assert same.json()["agent"] == {"name": "helper", "version": 1}
    assert other.json()["agent"] is None
    changed = await api.stored("other")
    assert agent_of(changed)["model"] == {"tier": "big"}
    assert changed.request.inputs == {"default": "6 times 7?", "inputs": {"topic": "sums"}}
    assert fields(strange) == ["inputs.tone", "inputs.topic"]
