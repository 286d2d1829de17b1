"""Tools of clients over HTTP: the runs that have them, and the answers of clients."""

import json
from typing import Any

import httpx
import psycopg
import pytest

from caseworker.engine.waiting_calls import Author, Question, WaitingCall
from caseworker.runs.run import RunKey
from tests.support.api import Api

pytestmark = pytest.mark.asyncio(loop_scope="module")

LOOKUP = {"name": "look_up", "parameters": {"type": "object", "properties": {}}}
CLIENT = {"client": LOOKUP}
KEY = RunKey("default", "a")
RESULT = "/runs/a/calls/c1/result"
JSON_TYPE = {"Content-Type": "application/json"}


def agent(*tools: Any) -> dict[str, Any]:
    return {"name": "shop", "prompt": {"system": "You are a shop."}, "tools": list(tools)}


def graph(*steps: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "graph", "graph": {"steps": list(steps), "edges": []}}


def agent_step(*tools: Any) -> dict[str, Any]:
    data = {"agent": agent(*tools), "input": "Where?"}
    return {"id": "ask", "type": "agent", "data": data}


def mapped(step: dict[str, Any]) -> dict[str, Any]:
    data = {"over": "default", "step": {"type": step["type"], "data": step["data"]}}
    return {"id": "each", "type": "map", "data": data}


@pytest.mark.parametrize(
    ("body", "is_stored"),
    [
        ({"kind": "agent", "agent": agent(CLIENT)}, True),
        ({"kind": "agent", "agent": agent("calculator", {**CLIENT, "tool": None})}, True),
        ({"kind": "agent", "agent": agent({"agent": agent(CLIENT)})}, True),
        (graph(agent_step(CLIENT)), True),
        (graph(mapped(agent_step(CLIENT))), True),
        ({"kind": "agent", "agent": agent("calculator")}, False),
        (graph(agent_step({"tool": "calculator", "client": None})), False),
    ],
)
async def test_a_run_with_tools_of_its_client_stores_who_has_created_it(
    client: httpx.AsyncClient,
    module_database: psycopg.Connection,
    body: dict[str, Any],
    is_stored: bool,
) -> None:
    """Such a run has also an account, so that the previous release does not claim it."""
    posted = await client.post("/runs", json={"run_id": "a", "input": "?", **body})
    assert posted.status_code == 202, posted.text

    query = "SELECT creator IS NOT NULL, reserved_cost_usd IS NOT NULL FROM runs"
    assert module_database.execute(query).fetchall() == [(is_stored, is_stored)]


async def test_a_registered_agent_and_a_thread_bring_tools_of_the_client(
    client: httpx.AsyncClient, module_database: psycopg.Connection
) -> None:
    """The run knows its creator, whichever way the tool came into it."""
    registered = await client.post("/agents", json={"agent": agent(CLIENT)})
    assert registered.status_code == 201, registered.text
    named = {"kind": "agent", "agent": {"name": "shop"}, "run_id": "named", "input": "?"}
    posted = await client.post("/runs", json=named)
    assert posted.status_code == 202, posted.text
    thread = {"thread_id": "t", "agent": agent("calculator"), "tools": [CLIENT]}
    assert (await client.post("/threads", json=thread)).status_code == 201
    message = {"content": "Hm?", "run_id": "message"}
    assert (await client.post("/threads/t/messages", json=message)).status_code == 202

    query = "SELECT run_id FROM runs WHERE creator IS NOT NULL ORDER BY run_id"
    assert module_database.execute(query).fetchall() == [("message",), ("named",)]


@pytest.mark.parametrize(
    ("tools", "place"),
    [
        ([CLIENT], "tools.0.client"),
        (["calculator", CLIENT], "tools.1.client"),
        ([{"agent": agent("calculator", CLIENT)}], "tools.0.agent.tools.1.client"),
    ],
)
async def test_an_external_run_refuses_tools_of_its_client(
    client: httpx.AsyncClient, tools: list[Any], place: str
) -> None:
    """The error names the entry, also inside an agent that is offered as a tool."""
    refused = await client.post("/runs", json={"kind": "external", "tools": tools})

    assert refused.status_code == 422, refused.text
    (error,) = refused.json()["errors"]
    assert error["field"] == place
    assert "executes its own tools" in error["message"]


async def waiting(api: Api, client: httpx.AsyncClient) -> None:
    """Post a run, and store an open call of it."""
    body = {"kind": "agent", "agent": agent(CLIENT), "run_id": "a", "input": "?"}
    assert (await client.post("/runs", json=body)).status_code == 202
    run = await api.store.claim(KEY, "worker")
    assert run is not None
    question = Question(
        subject="look_up",
        message="",
        arguments={"order": 7},
        schema=None,
        timeout_seconds=60,
        author=Author.CLIENT,
    )
    call = WaitingCall(call_id="c1", node_id="n1", call_key="agent/1/c1", question=question)
    assert await api.approval_store.ask(run, call) is not None


@pytest.mark.parametrize(
    "content",
    [
        '{"output": "\\ud800"}',
        '{"output": {"\\udfff": 1}}',
        '{"output": "\\u0000"}',
        '{"output": 1e400}',
        '{"output": NaN}',
        '{"output": ' + "9" * 5000 + "}",
        '{"output": ' + "[" * 300 + "]" * 300 + "}",
        '{"output": 1, "output": 2}',
        '{"error": {"class": "\\u0000", "message": "\\ud800"}}',
        '{"error": {"message": "a\\u0000b"}}',
        '{"error": null}',
        '{"output": null, "error": null}',
        "null",
        "{",
    ],
)
async def test_no_answer_breaks_the_service_or_its_lists(
    api: Api, client: httpx.AsyncClient, content: str
) -> None:
    """An odd answer is stored as it was sent, or refused; afterwards the call can be read."""
    await waiting(api, client)

    sent = await client.post(RESULT, content=content.encode(), headers=JSON_TYPE)
    again = await client.post(RESULT, content=content.encode(), headers=JSON_TYPE)
    listed = await client.get("/runs/a/calls")
    shown = await client.get("/runs/a")

    assert sent.status_code in (202, 400, 422), sent.text
    assert again.status_code == (200 if sent.status_code == 202 else sent.status_code), again.text
    assert (listed.status_code, shown.status_code) == (200, 200)
    status = listed.json()["calls"][0]["status"]
    assert status == ("answered" if sent.status_code == 202 else "waiting")


async def test_an_equal_answer_is_equal_as_json(api: Api, client: httpx.AsyncClient) -> None:
    """The order of members does not matter; numbers of another form and booleans do."""
    await waiting(api, client)
    bodies = (
        '{"output": {"a": 1, "b": [true]}}',
        '{"output": {"b": [true], "a": 1}}',
        '{"output": {"a": 1, "b": [1]}}',
        '{"output": {"a": true, "b": [true]}}',
        '{"error": {"message": "No."}}',
    )

    statuses = [
        (await client.post(RESULT, content=body.encode(), headers=JSON_TYPE)).status_code
        for body in bodies
    ]

    assert statuses == [202, 200, 409, 409, 409]


async def test_an_output_above_the_size_limit_of_values_is_refused(
    api: Api, client: httpx.AsyncClient
) -> None:
    """The error names the field and the setting; the call still waits."""
    await waiting(api, client)
    output = ["x" * 1000] * 3000

    refused = await client.post(RESULT, json={"output": output})
    listed = await client.get("/runs/a/calls", params={"status": "waiting"})

    assert refused.status_code in (413, 422), refused.text
    assert [each["call_id"] for each in listed.json()["calls"]] == ["c1"]


async def test_required_action_shows_only_open_calls(api: Api, client: httpx.AsyncClient) -> None:
    """It disappears with the answer; a call of another run is not found."""
    await waiting(api, client)
    before = (await client.get("/runs/a")).json()["required_action"]
    unknown = [
        (await client.post(path, json={"output": 1})).status_code
        for path in ("/runs/b/calls/c1/result", "/runs/a/calls/c2/result")
    ]
    missing = await client.get("/runs/b/calls")
    await client.post(RESULT, json={"output": json.dumps({"a": 1})})

    assert [each["call_id"] for each in before["calls"]] == ["c1"]
    assert unknown == [404, 404]
    assert missing.status_code == 404
    assert (await client.get("/runs/a")).json()["required_action"] is None
