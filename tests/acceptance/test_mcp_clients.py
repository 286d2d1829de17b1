"""The service as an MCP server, used by the SDK's own client over a socket."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import psycopg
import pytest
import pytest_asyncio
from caseworker_client import AsyncCaseworkerClient
from mcp import Client

from tests.support.database import proxied, upstream_of
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.fault_proxy import FaultProxy
from tests.support.mcp_servers import GENERATIONS
from tests.support.service import ServiceProcess, model_settings

QUESTION = "What is 17% of 2340?"
PLAN = {"actions": [{"tool": "calculator", "args": {"expression": "0.17 * 2340"}}]}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def service(
    module_database_url: str, running_provider: FakeProvider
) -> AsyncIterator[ServiceProcess]:
    """Run a service whose model answers one question and hangs at the other."""
    settings = model_settings(running_provider.openai_url)
    async with ServiceProcess(module_database_url, settings=settings) as running:
        await running_provider.script("17%", [Step(plan=PLAN)], repeat_last=True)
        await running_provider.script("slow", [Step(hang=True)], repeat_last=True)
        yield running


def client_of(service: ServiceProcess, generation: str) -> Client:
    return Client(f"{service.url}/mcp", mode=generation)


@pytest.mark.parametrize("generation", GENERATIONS)
async def test_a_call_is_an_ordinary_run(service: ServiceProcess, generation: str) -> None:
    """The call returns the run as structured content, and its metadata names MCP as the source."""
    async with client_of(service, generation) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        result = await client.call_tool("run_case", {"input": QUESTION})
        run: dict[str, Any] = result.structured_content
        again = await client.call_tool("get_run", {"run_id": run["run_id"]})

    assert set(tools) == {"run_case", "get_run"}
    assert not result.is_error
    assert (run["status"], run["result"]["answer"]) == ("completed", "397.8")
    assert json.loads(result.content[0].text) == run  # type: ignore[union-attr]
    assert run["metadata"] == {"via": "mcp", "tool": "run_case"}
    assert again.structured_content == run
    async with service.client() as api:
        assert (await api.get_run(run["run_id"]))["status"] == "completed"


async def test_inputs_of_an_agent_may_be_named_like_fields_of_a_run(
    service: ServiceProcess, running_provider: FakeProvider
) -> None:
    """Inputs named like fields reach the agent, and the run keeps its own ID and metadata."""
    await running_provider.script("(named)", [Step(text="So it is.")])
    names = ("run_id", "metadata", "wait_seconds")
    agent = {
        "name": "clashing",
        "prompt": {"system": "(named) ${run_id} ${metadata} ${wait_seconds}"},
        "inputs": {name: {"type": "string"} for name in names},
    }
    async with AsyncCaseworkerClient(service.url) as api:
        await api.register_agent(agent)
        async with client_of(service, "auto") as client:
            tools = {tool.name: tool for tool in (await client.list_tools()).tools}
            args = {name: f"my {name}" for name in names}
            result = await client.call_tool("clashing", {"input": "Well?", **args})
        await api.delete_agent("clashing")
    [asked] = await running_provider.arrivals("(named)", bodies=True)
    run = result.structured_content

    assert tools["clashing"].input_schema["properties"]["wait_seconds"]["type"] == "string"
    assert not result.is_error, result
    assert (run["status"], run["result"]["output"]) == ("completed", "So it is.")
    assert run["metadata"] == {"via": "mcp", "tool": "clashing"}
    assert run["run_id"] != "my run_id"
    said = (asked.body or {})["messages"][0]["content"]
    assert said == "(named) my run_id my metadata my wait_seconds"


async def test_a_process_that_ends_cancels_no_run(
    database_url: str, running_provider: FakeProvider
) -> None:
    """The call returns the run in its current status, and the run waits for another process.

    The answer arrives although the database takes more than a second.
    """
    await running_provider.script("leisure", [Step(hang=True)], repeat_last=True)
    settings = {**model_settings(running_provider.openai_url), "SHUTDOWN_GRACE_SECONDS": "5"}
    async with (
        FaultProxy(upstream_of(database_url)) as proxy,
        ServiceProcess(proxied(database_url, proxy), settings=settings) as leaving,
    ):
        async with client_of(leaving, "auto") as client, asyncio.TaskGroup() as group:
            await client.list_tools()  # a result is held against its schema: ask for it in time
            call = group.create_task(client.call_tool("run_case", {"input": "leisure"}))
            await running_provider.wait_for_arrivals(1, "leisure")
            proxy.silence()
            ended = group.create_task(leaving.child.terminate())
            await asyncio.sleep(1.5)
            proxy.resume()
        assert ended.result() == 0
        assert call.result().structured_content["status"] == "running"
    with psycopg.connect(database_url) as connection:
        left = connection.execute("SELECT status, attempts, cancel_requested_by FROM runs")
        assert left.fetchall() == [("queued", 0, None)]


async def test_a_request_that_is_repeated_makes_one_run(service: ServiceProcess) -> None:
    """The older protocol identifies a request by its session and its ID."""
    headers = {
        "accept": "application/json, text/event-stream",
        "mcp-session-id": "a-session",
        "mcp-protocol-version": "2025-06-18",
    }
    params = {"name": "run_case", "arguments": {"input": QUESTION}}
    call = {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params}
    async with httpx.AsyncClient(trust_env=False, timeout=150) as http:
        answers = [
            await http.post(f"{service.url}/mcp", json=call, headers=headers) for _ in range(2)
        ]

    ids = {answer.text.split('"run_id":"')[1].split('"')[0] for answer in answers}
    assert len(ids) == 1
