"""Agents outside of the service call its tools through the gateway, with the SDK's own client."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.external import QUICK_RECOVERY, REFUSED, Agent, next_attempt, start
from tests.support.external_tools import Notes, code_of, tools_of, until
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.mcp_servers import GENERATIONS
from tests.support.noting_tool import HELD, RELEASE
from tests.support.service import ServiceProcess, model_settings
from tests.support.stores import eventually

pytestmark = pytest.mark.req("cw/15.tools")

TOOLS = ["jot", "note"]


@pytest.fixture(scope="module")
def notes(tmp_path_factory: pytest.TempPathFactory) -> Notes:
    return Notes(tmp_path_factory.mktemp("notes") / "notes")


@pytest.fixture(scope="module")
def service_settings(running_provider: FakeProvider, notes: Notes) -> dict[str, str]:
    return {**model_settings(running_provider.openai_url), **notes.settings}


@pytest.fixture(autouse=True)
def _held(notes: Notes) -> None:
    Path(f"{notes.path}{RELEASE}").unlink(missing_ok=True)


@pytest.fixture
async def http(service: ServiceProcess) -> AsyncIterator[httpx.AsyncClient]:
    async with service.http() as opened:
        yield opened


async def jot(agent: Agent, *texts: str) -> list[Any]:
    """Call the tool that needs no approval, once for each text, one after the other."""
    async with tools_of(agent) as client:
        results = [await client.call_tool("jot", {"text": text}) for text in texts]
    return [each.structured_content for each in results]


async def posted(agent: Agent, text: str) -> httpx.Response:
    """Call the tool that needs no approval without the client library."""
    headers = {
        "Authorization": f"Bearer {agent.key}",
        "Accept": "application/json, text/event-stream",
    }
    call = {"name": "jot", "arguments": {"text": text}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
    return await agent.http.post("/gateway/mcp", json=body, headers=headers)


async def refusal(agent: Agent, text: str) -> str:
    """Return the code with which a call is refused."""
    async with tools_of(agent, "2026-07-28") as client:
        return await code_of(client.call_tool("jot", {"text": text}))


@asynccontextmanager
async def in_flight(agent: Agent, notes: Notes, text: str) -> AsyncIterator[asyncio.Task[Any]]:
    """Call a tool in a task, and wait until the tool is executed; disconnect after the block."""
    async with tools_of(agent) as client:
        task = asyncio.create_task(client.call_tool("jot", {"text": text}))
        await notes.wait_for(agent, text)
        yield task
        task.cancel()
        await asyncio.wait((task,))


async def tool_nodes(agent: Agent) -> list[dict[str, Any]]:
    trace = (await agent.get("/trace")).json()
    return [node for node in trace["snapshot"]["nodes"].values() if node["kind"] == "tool"]


@pytest.mark.parametrize("generation", GENERATIONS)
async def test_the_client_lists_and_calls_the_tools_of_its_run(
    http: httpx.AsyncClient, notes: Notes, generation: str
) -> None:
    """A call is counted, and has a node in the trace that is not marked as reported."""
    agent = await start(http, tools=TOOLS)
    async with tools_of(agent, generation) as client:
        listed = {tool.name: tool for tool in (await client.list_tools()).tools}
        done = await client.call_tool("jot", {"text": "one"})
        wrong = await client.call_tool("jot", {"words": "one"})
    await agent.finish({"output": None})
    run, nodes = (await agent.get()).json(), await tool_nodes(agent)

    assert agent.run["access"]["mcp_url"] == str(http.base_url.join("/gateway/mcp"))
    assert set(listed) == set(TOOLS)
    assert listed["jot"].input_schema["required"] == ["text"]
    assert not done.is_error
    assert done.structured_content == json.loads(done.content[0].text) == {"noted": "one"}  # type: ignore[union-attr]
    assert wrong.is_error
    assert wrong.structured_content["code"] == "invalid_arguments"
    assert notes.of(agent) == ["one"]
    assert run["usage"]["tool_calls"] == 1
    assert [(node["name"], node["status"]) for node in nodes] == [("jot", "success")]
    assert "reported" not in nodes[0]["metadata"]


async def test_a_limit_on_tool_calls_halts_the_run(http: httpx.AsyncClient, notes: Notes) -> None:
    """The refused call does not reach the tool; its error contains the kind of the stop."""
    agent = await start(http, tools=TOOLS, budget={"max_tool_calls": 1})
    await jot(agent, "first")
    code = await refusal(agent, "second")
    run = await agent.ended()
    later = await posted(agent, "third")

    assert code == "budget"
    assert (run["status"], run["stop"]["dimension"]) == ("halted", "tool_calls")
    assert notes.of(agent) == ["first"]
    assert later.status_code == REFUSED
    assert later.headers["x-should-retry"] == "false"
    assert later.json()["error"]["data"] == {"code": "budget"}


async def test_a_call_waits_for_its_approval(http: httpx.AsyncClient, notes: Notes) -> None:
    """The run stays active, and can make other calls."""
    agent, found = await start(http, tools=TOOLS), list[Any]()

    async def is_asked() -> bool:
        found[:] = (await agent.get("/approvals")).json()["approvals"]
        return bool(found)

    async with tools_of(agent) as client:
        asked = asyncio.create_task(client.call_tool("note", {"text": "approved"}))
        await eventually(is_asked)
        await jot(agent, "meanwhile")
        status = (await agent.get()).json()["status"]
        before = notes.of(agent)
        path = f"/runs/{agent.run_id}/approvals/{found[0]['approval_id']}"
        await http.post(path, json={"decision": "approve"})
        result = await asked

    assert status == "running"
    assert before == ["meanwhile"]
    assert result.structured_content == {"noted": "approved"}
    assert notes.of(agent) == ["meanwhile", "approved"]


async def test_a_later_attempt_gets_the_recorded_results_in_order(
    http: httpx.AsyncClient, notes: Notes
) -> None:
    """Each result is used once; one call more is executed."""
    agent = await start(http, tools=TOOLS)
    await jot(agent, "a", "b", "a")
    second = await next_attempt(http, agent, tools=TOOLS)
    superseded = await refusal(agent, "a")
    await jot(second, "a", "a", "b", "a")
    await second.finish({"output": None})
    run = (await second.get()).json()

    assert superseded == "superseded"
    assert notes.of(agent) == ["a", "b", "a", "a"]
    assert run["usage"]["tool_calls"] == 4
    assert (run["result"]["replayed_calls"], run["result"]["unused_calls"]) == (3, 0)


@pytest.mark.parametrize("replay", [True, False])
async def test_a_later_attempt_joins_the_call_in_flight(
    http: httpx.AsyncClient, notes: Notes, replay: bool
) -> None:
    """The call continues without its client, so the tool is executed once."""
    agent = await start(http, tools=TOOLS, replay=replay)
    async with in_flight(agent, notes, HELD):
        pass
    second = await next_attempt(http, agent, tools=TOOLS, replay=replay)
    async with asyncio.TaskGroup() as group:
        again = group.create_task(jot(second, HELD))
        await jot(second, "other")
        notes.release()

    assert again.result() == [{"noted": HELD}]
    assert notes.of(agent) == [HELD, "other"]


async def test_a_repeated_call_after_a_lost_connection_gets_the_first_result(
    http: httpx.AsyncClient, notes: Notes
) -> None:
    """A further equal call is another call."""
    agent = await start(http, tools=TOOLS)
    async with in_flight(agent, notes, HELD):
        pass
    notes.release()
    results = await jot(agent, HELD, HELD)

    assert results == [{"noted": HELD}] * 2
    assert notes.of(agent) == [HELD, HELD]


async def test_a_cancel_interrupts_a_call(http: httpx.AsyncClient, notes: Notes) -> None:
    """The client gets the kind of the stop as an error."""
    agent = await start(http, tools=TOOLS)
    async with in_flight(agent, notes, HELD) as call:
        await http.delete(f"/runs/{agent.run_id}")
        code = await code_of(call)
    run = await agent.ended()

    assert code == "cancelled"
    assert run["status"] == "cancelled"


async def test_a_client_of_the_older_protocol_cancels_its_own_call(
    http: httpx.AsyncClient, notes: Notes
) -> None:
    """The tool is interrupted, calls of other clients continue, and an equal call is a new one."""
    agent = await start(http, tools=TOOLS)

    async def is_halted() -> bool:
        return [node["status"] for node in await tool_nodes(agent)].count("halt") == 1

    async with tools_of(agent, "legacy") as client, tools_of(agent, "legacy") as other:
        await client.list_tools()
        await other.list_tools()  # both clients count their requests alike
        calls = [
            asyncio.create_task(each.call_tool("jot", {"text": f"{HELD} {name}"}))
            for name, each in (("first", client), ("second", other))
        ]
        for name in ("first", "second"):
            await notes.wait_for(agent, f"{HELD} {name}")
        calls[0].cancel()
        await asyncio.wait(calls[:1])
        await eventually(is_halted)
        again = asyncio.create_task(client.call_tool("jot", {"text": f"{HELD} first"}))
        await until(lambda: notes.of(agent).count(f"{HELD} first") == 2)
        notes.release()
        results = [(await each).structured_content for each in (calls[1], again)]

    assert results == [{"noted": f"{HELD} second"}, {"noted": f"{HELD} first"}]
    assert (await agent.get()).json()["status"] == "running"


@pytest.mark.parametrize("generation", GENERATIONS)
async def test_a_client_that_asks_for_progress_of_a_tool_gets_it(
    http: httpx.AsyncClient, notes: Notes, generation: str
) -> None:
    """The notifications have the seconds since the start of the call."""
    agent, seconds = await start(http, tools=TOOLS), list[float]()

    async def note(progress: float, total: float | None, message: str | None) -> None:
        seconds.append(progress)
        notes.release()

    async with tools_of(agent, generation) as client:
        args = {"text": HELD}
        result = await client.call_tool("jot", args, progress_callback=note)

    assert result.structured_content == {"noted": HELD}
    assert seconds


async def test_a_call_in_flight_at_a_crash_is_never_executed_again(
    database_url: str, provider: FakeProvider, notes: Notes
) -> None:
    """Its outcome is unknown; calls with a recorded result are replayed to the next attempt."""
    settings = {**model_settings(provider.openai_url), **QUICK_RECOVERY, **notes.settings}

    async def is_recovered() -> bool:
        return (await http.post(f"/runs/{agent.run_id}/heartbeat")).status_code == 200

    async with (
        ServiceProcess(database_url, settings=settings) as killed,
        killed.http() as http,
    ):
        agent = await start(http, run_id="killed", tools=TOOLS)
        await jot(agent, "done")
        call = asyncio.create_task(posted(agent, HELD))
        await notes.wait_for(agent, HELD)
        killed.child.kill()
        with pytest.raises(httpx.TransportError):
            await call
    notes.release()
    async with (
        ServiceProcess(database_url, settings=settings) as service,
        service.http() as http,
    ):
        agent = Agent(http=http, run=agent.run)
        await eventually(is_recovered)
        continued = await jot(agent, HELD)
        second = await next_attempt(http, agent, tools=TOOLS)
        replayed = await jot(second, "done", HELD)
        wanted = await jot(second, HELD)

    assert continued[0]["code"] == "outcome_unknown"
    assert replayed[0] == {"noted": "done"}
    assert replayed[1]["code"] == "outcome_unknown"
    assert wanted == [{"noted": HELD}]
    assert notes.of(agent) == ["done", HELD, HELD]


async def test_a_child_gets_only_tools_of_its_parent(http: httpx.AsyncClient) -> None:
    """It cannot drop the approval that the parent needs."""
    asks = {"tool": "jot", "requires_approval": True}
    agent = await start(http, tools=["note", asks])
    child = await start(http, tools=["note", "jot", "calculator"], parent={"run_id": agent.run_id})
    async with tools_of(child) as client:
        listed = [tool.name for tool in (await client.list_tools()).tools]

    assert listed == ["note"]


async def test_a_call_through_the_gateway_is_not_reported_again(
    http: httpx.AsyncClient, provider: FakeProvider
) -> None:
    """Frameworks add a prefix to the names of the tools of a server."""
    asked = [
        {"id": "call_1", "name": "mcp__caseworker__jot", "arguments": '{"text": "counted"}'},
        {"id": "call_2", "name": "own_tool", "arguments": "{}"},
    ]
    await provider.script("COUNTED", [Step(tool_calls=asked), Step(text="done")])
    agent = await start(http, tools=TOOLS)
    messages = [{"role": "user", "content": "COUNTED"}]
    reply = (await agent.ask("", messages=messages)).raise_for_status().json()
    await jot(agent, "counted")
    results = [{"role": "tool", "tool_call_id": each["id"], "content": "x"} for each in asked]
    more = [*messages, reply["choices"][0]["message"], *results]
    (await agent.ask("", messages=more)).raise_for_status()
    await agent.finish({"output": None})

    assert (await agent.get()).json()["usage"]["tool_calls"] == 2
    assert sorted(node["name"] for node in await tool_nodes(agent)) == ["jot", "own_tool"]


async def test_an_agent_can_be_a_tool(http: httpx.AsyncClient, provider: FakeProvider) -> None:
    """A later attempt gets its recorded answer."""
    await provider.script("SUB", [Step(text="dry")], repeat_last=True)
    helper = {"name": "helper", "prompt": {}}
    tools = [{"agent": helper}]
    agent = await start(http, tools=tools)
    results = []
    for _ in range(2):
        async with tools_of(agent) as client:
            results.append(await client.call_tool("helper", {"input": "SUB"}))
        agent = await next_attempt(http, agent, tools=tools)

    assert [each.structured_content for each in results] == [{"output": "dry"}] * 2
    assert await provider.count("SUB") == 1


@pytest.mark.parametrize(
    ("tools", "field"),
    [(["unknown"], "tools.0"), ([{"mcp": "unknown"}], "tools.0.mcp"), ([{}], "tools.0")],
)
async def test_tools_that_do_not_exist_are_refused(
    http: httpx.AsyncClient, tools: list[Any], field: str
) -> None:
    """The request that creates the run names them."""
    refused = await http.post("/runs", json={"kind": "external", "tools": tools})

    assert refused.status_code == 422, refused.text
    assert [each["field"] for each in refused.json()["errors"]] == [field]


async def test_a_message_may_not_be_as_long_as_a_model_call(http: httpx.AsyncClient) -> None:
    """It is read in the event loop, so the usual limit of bodies applies."""
    agent = await start(http, tools=TOOLS)
    reply = await posted(agent, "x" * 300 * 1024)

    assert reply.status_code == 413, reply.text
    assert reply.json()["error"]["data"]["code"] == "body-too-large"


async def test_an_unknown_key_is_refused_in_the_form_of_the_protocol(
    http: httpx.AsyncClient,
) -> None:
    """The status is 401."""
    headers = {"Authorization": "Bearer cwr_unknown"}
    refused = await http.post("/gateway/mcp", json={}, headers=headers)

    assert refused.status_code == 401
    assert refused.json()["error"]["data"] == {"code": "invalid_api_key"}
