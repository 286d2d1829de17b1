"""``/mcp`` for the SDK's own client, in process: tools, refusals, cancels and wrong messages."""

import asyncio
import json
from typing import Any

import httpx
import psycopg
import pytest
from mcp import MCPError

from caseworker.faces.mcp_server import server as mcp_server
from caseworker.faces.mcp_server.endpoint import SESSION_HEADER
from caseworker.platform.caller import KeyScope
from caseworker.runs.run import RunStatus
from tests.contract.mcp_service import NOW, QUESTION, McpService, text_of
from tests.support.api import Api
from tests.support.limits import api_limits
from tests.support.mcp_servers import GENERATIONS
from tests.support.stores import eventually

pytestmark = pytest.mark.asyncio(loop_scope="module")

AGENT = {
    "name": "helper",
    "description": "Helps.",
    "prompt": {"system": "Help with ${topic}."},
    "inputs": {"topic": {"type": "string"}},
}
ACCEPT = {"Accept": "application/json, text/event-stream"}


@pytest.fixture
def mcp_service(api: Api) -> McpService:
    return McpService(api.app(limits=api_limits(max_body_bytes=100_000)), api)


def slug(answer: httpx.Response) -> str:
    return str(answer.json()["type"]).rpartition(":")[2]


@pytest.mark.parametrize("mode", GENERATIONS)
async def test_the_tools_are_listed_with_their_arguments(
    mcp_service: McpService, mode: str
) -> None:
    """Cases, runs, and the registered agents of the caller's own tenant."""
    mine, others = await mcp_service.key(), await mcp_service.key("b")
    async with mcp_service.http(mine) as http:
        assert (await http.post("/agents", json={"agent": AGENT})).status_code == 201
    async with mcp_service.mcp(mine, mode) as client, mcp_service.mcp(others, mode) as other:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        seen = {tool.name for tool in (await other.list_tools()).tools}

    assert (set(tools), seen) == ({"get_run", "run_case", "helper"}, {"get_run", "run_case"})
    assert tools["helper"].description == "Helps."
    assert set(tools["helper"].input_schema["properties"]) == {
        "wait_seconds",
        "input",
        "topic",
        "budget",
    }
    assert tools["run_case"].input_schema["required"] == ["input"]
    assert tools["get_run"].annotations is not None
    assert tools["get_run"].annotations.read_only_hint


@pytest.mark.parametrize("mode", GENERATIONS)
@pytest.mark.parametrize("status", [RunStatus.COMPLETED, RunStatus.FAILED])
async def test_a_call_of_run_case_returns_its_run_once_it_has_ended(
    mcp_service: McpService, mode: str, status: RunStatus
) -> None:
    """The result is the run as ``GET /runs/{id}`` shows it; a failed run is a failed call."""
    key = await mcp_service.key()
    async with mcp_service.mcp(key, mode) as client, mcp_service.http(key) as http:
        calling = asyncio.create_task(client.call_tool("run_case", {"input": QUESTION}))
        made = await mcp_service.first(key)
        await mcp_service.end(made["run_id"], status)
        result = await calling
        run = (await http.get(f"/runs/{made['run_id']}")).json()

    assert (run["status"], run["metadata"]) == (status, {"via": "mcp", "tool": "run_case"})
    assert result.structured_content == json.loads(text_of(result)) == run
    assert result.is_error == (status is RunStatus.FAILED)


async def test_a_call_of_an_agent_is_a_run_of_its_newest_version(mcp_service: McpService) -> None:
    """The call's arguments are the inputs of the agent."""
    key = await mcp_service.key()
    async with mcp_service.http(key) as http, mcp_service.mcp(key) as client:
        for description in ("Helps.", "Helps more."):
            await http.post("/agents", json={"agent": {**AGENT, "description": description}})
        args = {"input": "Well?", "topic": "taxes", "wait_seconds": 0}
        run = (await client.call_tool("helper", args)).structured_content
    assert run is not None
    stored = await mcp_service.api.stored(run["run_id"], tenant="a")

    assert (run["kind"], run["status"]) == ("agent", "queued")
    assert (run["agent"]["name"], run["agent"]["version"]) == ("helper", 2)
    assert stored.request.inputs == {"default": "Well?", "inputs": {"topic": "taxes"}}


@pytest.mark.parametrize("mode", GENERATIONS)
async def test_get_run_returns_a_run_as_it_stands_and_later_its_end(
    mcp_service: McpService, mode: str
) -> None:
    """When the waiting time is over, the call returns the unfinished run."""
    key = await mcp_service.key()
    async with mcp_service.mcp(key, mode) as client:
        run = (await client.call_tool("run_case", NOW)).structured_content
        assert run is not None
        asked = {"run_id": run["run_id"], "wait_seconds": 0}
        early = await client.call_tool("get_run", asked)
        await mcp_service.end(run["run_id"], RunStatus.COMPLETED)
        late = await client.call_tool("get_run", {"run_id": run["run_id"]})

    assert (early.structured_content, early.is_error) == (run, False)
    assert late.structured_content is not None
    assert (run["status"], late.structured_content["status"]) == ("queued", "completed")


@pytest.mark.parametrize("mode", GENERATIONS)
async def test_a_client_that_asks_for_progress_hears_the_status_of_its_run(
    mcp_service: McpService, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    """Progress is reported until the time of the call ends."""
    monkeypatch.setattr(mcp_server, "PROGRESS_SECONDS", 0.01)
    heard: list[tuple[float | None, str | None]] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append((total, message))

    async with mcp_service.mcp(await mcp_service.key(), mode) as client:
        args = {"input": QUESTION, "wait_seconds": 0.3}
        await client.call_tool("run_case", args, progress_callback=hear)

    assert set(heard) == {(0.3, "queued")}


@pytest.mark.parametrize("mode", GENERATIONS)
@pytest.mark.parametrize(
    ("tool", "args", "said"),
    [
        ("run_case", {**NOW, "mode": "guess"}, "mode: "),
        ("run_case", {**NOW, "moods": 1}, "moods: "),
        ("run_case", {"wait_seconds": 0}, "input: "),
        ("run_case", {**NOW, "wait_seconds": "long"}, "wait_seconds: This must be a number"),
        ("run_case", {**NOW, "wait_seconds": -1}, "wait_seconds: This must be a number"),
        ("run_case", {**NOW, "wait_seconds": True}, "wait_seconds: This must be a number"),
        ("run_case", {**NOW, "budget": {"max_tokens": -1}}, "budget.max_tokens: "),
        ("run_case", {**NOW, "budget": {"max_cents": 1}}, "budget.max_cents: "),
        ("helper", {"input": "Well?", "tonic": "gin"}, "inputs.tonic: "),
        ("helper", {"topic": "taxes"}, "input: "),
        ("helper", {"input": "Well?", "topic": 7}, "inputs.topic: "),
        ("helper", {"input": "Well?", "topic": "a", "budget": 1}, "budget: "),
        (
            "helper",
            {"input": "Well?", "topic": "a", "budget": {"max_tool_calls": -1}},
            "budget.max_tool_calls: ",
        ),
        ("get_run", {"run_id": "no-such-run"}, "No run has this ID"),
        ("get_run", {}, "No run has this ID"),
        ("no_such_tool", {}, "Unknown tool"),
    ],
)
async def test_a_call_that_cannot_be_made_fails_and_says_why(
    mcp_service: McpService, mode: str, tool: str, args: dict[str, Any], said: str
) -> None:
    """The error names the field, and no run is created."""
    key = await mcp_service.key()
    async with mcp_service.http(key) as http, mcp_service.mcp(key, mode) as client:
        await http.post("/agents", json={"agent": AGENT})
        result = await client.call_tool(tool, args)

    assert result.is_error
    assert text_of(result).count(said) == 1
    assert await mcp_service.made(key) == []


async def test_every_invalid_field_is_named_once(mcp_service: McpService) -> None:
    """The text has no list that only a problem document has."""
    names = ("tokens", "seconds", "steps", "llm_calls", "tool_calls")
    wrong = {f"max_{name}": -1 for name in names}
    async with mcp_service.mcp(await mcp_service.key()) as client:
        said = text_of(await client.call_tool("run_case", {**NOW, "budget": wrong}))

    assert [said.count(f"{name}: ") for name in wrong] == [1] * 5
    assert "errors lists" not in said


@pytest.mark.parametrize("mode", GENERATIONS)
async def test_a_client_gives_the_run_of_an_agent_a_budget(
    mcp_service: McpService, mode: str
) -> None:
    """An agent with an input of the same name keeps its input."""
    key, own = await mcp_service.key(), {"budget": {"type": "object"}}
    async with mcp_service.http(key) as http, mcp_service.mcp(key, mode) as client:
        await http.post("/agents", json={"agent": AGENT})
        buys = {"name": "buyer", "prompt": {"system": "Buy."}, "inputs": own}
        assert (await http.post("/agents", json={"agent": buys})).status_code == 201
        args = {"input": "Well?", "wait_seconds": 0, "budget": {"max_tool_calls": 3}}
        limited = (await client.call_tool("helper", {**args, "topic": "taxes"})).structured_content
        buyer = (await client.call_tool("buyer", args)).structured_content
    requests = []
    for run in (limited, buyer):
        assert run is not None
        stored = await mcp_service.api.stored(run["run_id"], tenant="a")
        requests.append(stored.request)

    assert [each.budget.max_tool_calls == 3 for each in requests] == [True, False]
    assert [each.inputs["inputs"].get("budget") for each in requests] == [None, args["budget"]]


async def test_a_run_of_another_tenant_is_not_there(mcp_service: McpService) -> None:
    """The answer is the same as for a run that does not exist."""
    async with (
        mcp_service.mcp(await mcp_service.key("a")) as owner,
        mcp_service.mcp(await mcp_service.key("b")) as other,
    ):
        run = (await owner.call_tool("run_case", NOW)).structured_content
        assert run is not None
        foreign = await other.call_tool("get_run", {"run_id": run["run_id"]})
        unknown = await other.call_tool("get_run", {"run_id": "no-such-run"})

    assert foreign.is_error
    assert text_of(foreign) == text_of(unknown)


async def test_a_key_that_may_only_read_makes_no_runs(mcp_service: McpService) -> None:
    """A key with the scope read lists tools and reads runs but cannot create or cancel one."""
    key, reading = await mcp_service.key(), await mcp_service.key("a", KeyScope.READ)
    async with mcp_service.mcp(key) as owner, mcp_service.mcp(reading) as client:
        run = (await owner.call_tool("run_case", NOW)).structured_content
        assert run is not None
        got = await client.call_tool("get_run", {"run_id": run["run_id"], "wait_seconds": 0})
        refused = await client.call_tool("run_case", NOW)
    async with mcp_service.http(reading) as http:
        cancel = await send(http, "notifications/cancelled", {"requestId": 1}, session="s")

    assert got.structured_content == run
    assert refused.is_error
    assert "run" in text_of(refused)
    assert cancel.status_code == httpx.codes.FORBIDDEN
    assert len(await mcp_service.made(key)) == 1


@pytest.mark.parametrize("mode", GENERATIONS)
async def test_without_a_key_nothing_is_answered(mcp_service: McpService, mode: str) -> None:
    """The answer is 401 before the protocol is parsed."""
    await mcp_service.key()
    async with mcp_service.http({}) as http:
        answer = await send(http, "tools/list", {})
    with pytest.RaisesGroup(MCPError, flatten_subgroups=True):
        async with mcp_service.mcp({}, mode) as client:
            await client.list_tools()

    assert (answer.status_code, slug(answer)) == (401, "credential-required")
    assert await mcp_service.made(await mcp_service.key()) == []


@pytest.mark.parametrize("mode", GENERATIONS)
async def test_a_client_that_cancels_its_call_cancels_the_run(
    mcp_service: McpService, mode: str
) -> None:
    """The client closes its connection, or sends the notification of the older protocol."""
    key = await mcp_service.key()
    async with mcp_service.mcp(key, mode) as client:
        calling = asyncio.create_task(client.call_tool("run_case", {"input": QUESTION}))
        await mcp_service.first(key)
        calling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await calling

        async def ended() -> bool:
            return (await mcp_service.made(key))[0]["finished_at"] is not None

        await eventually(ended)
    [run] = await mcp_service.made(key)

    assert (run["status"], run["cancel"]["requested_by"]) == ("cancelled", "mcp")


async def send(
    http: httpx.AsyncClient, method: str, params: Any, *, session: str = "", **more: Any
) -> httpx.Response:
    """Send one message of the older protocol as it is."""
    message = {"jsonrpc": "2.0", "method": method, "params": params, **more}
    headers = {**ACCEPT, **({SESSION_HEADER: session} if session else {})}
    return await http.post("/mcp", json=message, headers=headers)


async def test_a_cancel_that_overtakes_its_call_is_kept_for_it(mcp_service: McpService) -> None:
    """The cancel applies only to the request of that session, with that ID and type."""
    key = await mcp_service.key()
    call = {"name": "run_case", "arguments": NOW}
    async with mcp_service.http(key) as http:
        await send(http, "notifications/cancelled", {"requestId": 7}, session="mine")
        for session, number in (("mine", 7), ("mine", "7"), ("mine", 8), ("other", 7)):
            await send(http, "tools/call", call, session=session, id=number)

    statuses = sorted(run["status"] for run in await mcp_service.made(key))
    assert statuses == ["cancelled", "queued", "queued", "queued"]


@pytest.mark.parametrize("params", [None, [], {}, {"requestId": None}, {"requestId": [1]}])
async def test_a_cancel_that_names_no_request_stores_nothing(
    mcp_service: McpService, module_database: psycopg.Connection, params: Any
) -> None:
    """The notification is accepted like any other."""
    key = await mcp_service.key()
    async with mcp_service.http(key) as http:
        answer = await send(http, "notifications/cancelled", params, session="mine")

    assert answer.status_code < httpx.codes.INTERNAL_SERVER_ERROR
    assert module_database.execute("SELECT count(*) FROM runs").fetchone() == (0,)


async def test_the_handshake_gives_each_client_a_session_of_its_own(
    mcp_service: McpService,
) -> None:
    """Run IDs are derived from the session, so it must be unpredictable."""
    params = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    }
    async with mcp_service.http(await mcp_service.key()) as http:
        answers = [await send(http, "initialize", params, id=1) for _ in range(2)]

    assert [answer.status_code for answer in answers] == [200, 200]
    sessions = {answer.headers[SESSION_HEADER] for answer in answers}
    assert sorted(map(len, sessions)) == [32, 32]


@pytest.mark.parametrize(
    ("content", "status", "problem"),
    [
        (b"{", 400, "malformed-body"),
        (b"[]", 400, "malformed-body"),
        (b"7", 400, "malformed-body"),
        (b'"' + b"x" * 200_000 + b'"', 413, "body-too-large"),
    ],
)
async def test_a_body_that_is_no_message_is_refused(
    mcp_service: McpService, content: bytes, status: int, problem: str
) -> None:
    """The rules of all other routes apply."""
    async with mcp_service.http(await mcp_service.key()) as http:
        headers = {**ACCEPT, "Content-Type": "application/json"}
        answer = await http.post("/mcp", content=content, headers=headers)

    assert (answer.status_code, slug(answer)) == (status, problem)


@pytest.mark.parametrize("method", ["GET", "DELETE", "PUT"])
async def test_only_post_is_served(mcp_service: McpService, method: str) -> None:
    """The server offers no stream to open and no session to delete."""
    async with mcp_service.http(await mcp_service.key()) as http:
        answer = await http.request(method, "/mcp", headers=ACCEPT)

    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


async def test_a_method_that_is_unknown_is_an_error_of_the_protocol(
    mcp_service: McpService,
) -> None:
    """The error has the JSON-RPC code for unknown methods."""
    async with mcp_service.http(await mcp_service.key()) as http:
        answer = await send(http, "no/such/method", {}, id=1)

    assert '"code":-32601' in answer.text.replace(" ", "")


async def test_a_call_that_breaks_the_service_says_nothing_of_the_reason(
    mcp_service: McpService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reason appears only in the log."""

    def broken(*_: object) -> None:
        raise RuntimeError("the secret reason")

    monkeypatch.setattr(mcp_server, "view_with_usage", broken)
    async with mcp_service.mcp(await mcp_service.key()) as client:
        result = await client.call_tool("run_case", NOW)

    assert result.is_error
    assert text_of(result) == "Internal error. Retry the call later."
