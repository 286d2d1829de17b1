"""Tools that the client of a run executes: a call waits, and is answered exactly once."""

import asyncio
import json
from typing import Any

import httpx
import psycopg
import pytest

from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.json_client import JsonClient
from tests.support.service import ServiceProcess, finished
from tests.support.threads import ThreadClient

LOOKUP: dict[str, Any] = {
    "name": "look_up",
    "description": "Looks up an order.",
    "parameters": {
        "type": "object",
        "properties": {"order": {"type": "integer"}},
        "required": ["order"],
    },
}
EXPIRES = """
WITH late AS (UPDATE approvals SET expires_at = now() WHERE decision IS NULL AND run_id = 'error')
UPDATE runs SET queued_at = now() WHERE run_id = 'error'
"""
WRONG: list[Any] = [
    {},
    {"output": 1, "error": {"message": "both"}},
    {"error": {"class": "X"}},
    {"error": {"message": ""}},
    {"output": 1, "more": 2},
    {"output": "a\x00b"},
    [],
]
"""Invalid results of a call."""
ANSWER = "It is on its way."


def call(number: int) -> dict[str, str]:
    """Return a call of the client's tool, as a model requests it."""
    return {"id": f"c{number}", "name": "look_up", "arguments": f'{{"order": {number}}}'}


def agent_run(marker: str, run_id: str, **fields: Any) -> dict[str, Any]:
    """Return a run of an agent with a client's tool."""
    agent = {
        "name": "shop",
        "prompt": {"system": "You are a shop."},
        "tools": [{"client": LOOKUP}, "calculator"],
    }
    return {
        "kind": "agent",
        "run_id": run_id,
        "agent": agent,
        "input": f"Where? {marker}",
        **fields,
    }


async def open_calls(client: JsonClient, run_id: str, count: int = 1) -> list[dict[str, Any]]:
    """Wait until a run has released its worker for ``count`` calls, and return them."""
    async with asyncio.timeout(150):
        while True:
            run = await client.get_run(run_id)
            assert run["finished_at"] is None, run
            calls: list[dict[str, Any]] = (run["required_action"] or {}).get("calls", [])
            if run["status"] == "waiting" and len(calls) == count:
                return calls
            await asyncio.sleep(0.02)


async def results(provider: FakeProvider, marker: str) -> list[Any]:
    """Return the results of tools in the last request of a run."""
    last = (await provider.arrivals(marker, bodies=True))[-1]
    messages = (last.body or {})["messages"]
    return [json.loads(each["content"]) for each in messages if each["role"] == "tool"]


async def answer(
    http: httpx.AsyncClient, run_id: str, call_id: str, **result: Any
) -> httpx.Response:
    return await http.post(f"/runs/{run_id}/calls/{call_id}/result", json=result)


@pytest.mark.req("cw/17.waiting", "cw/17.result")
async def test_the_client_executes_its_tool_and_the_run_goes_on(
    service: ServiceProcess, client: JsonClient, provider: FakeProvider
) -> None:
    """The model reads the output; an equal repetition is 200, another answer 409."""
    await provider.script("(one)", [Step(tool_calls=[call(7)]), Step(text=ANSWER)])
    async with service.http() as http:
        await client.post_run(agent_run("(one)", "one"))
        (waiting,) = await open_calls(client, "one")
        listed = (await http.get("/runs/one/calls", params={"status": "waiting"})).json()["calls"]
        node = (await http.get(f"/runs/one/calls/{listed[0]['node_id']}")).json()
        first = await answer(http, "one", waiting["call_id"], output={"state": "sent"})
        again = await answer(http, "one", waiting["call_id"], output={"state": "sent"})
        other = await answer(http, "one", waiting["call_id"], output={"state": "lost"})
        run = await finished(client, "one")
        late = await answer(http, "one", waiting["call_id"], output={"state": "sent"})
        calls = (await http.get("/runs/one/calls")).json()["calls"]
        events = [each async for each in client.events("one")]

    assert (waiting["author"], waiting["name"]) == ("client", "look_up")
    assert waiting["arguments"] == {"order": 7}
    assert [each["call_id"] for each in listed] == [waiting["call_id"]]
    assert (node["kind"], node["status"]) == ("tool", "waiting")
    assert (first.status_code, again.status_code, other.status_code) == (202, 200, 409)
    assert late.status_code == 200
    assert run["status"] == "completed", run
    assert run["usage"]["tool_calls"] == 1
    assert run["required_action"] is None
    assert [(each["status"], each["output"]) for each in calls] == [("answered", {"state": "sent"})]
    (action,) = (each for each in events if each["type"] == "required_action")
    assert action["data"] == {"call_id": waiting["call_id"], "name": "look_up"}
    assert await results(provider, "(one)") == [{"output": {"state": "sent"}}]


@pytest.mark.req("cw/17.result")
async def test_an_error_and_an_expiry_are_read_by_the_model(
    service: ServiceProcess, client: JsonClient, provider: FakeProvider, module_database_url: str
) -> None:
    """The run continues; an answer after the expiry is refused."""
    steps = [Step(tool_calls=[call(1)]), Step(tool_calls=[call(2)]), Step(text=ANSWER)]
    await provider.script("(error)", steps)
    async with service.http() as http:
        await client.post_run(agent_run("(error)", "error"))
        (failing,) = await open_calls(client, "error")
        error = {"class": "KeyError", "message": "There is no such order."}
        sent = await answer(http, "error", failing["call_id"], error=error)
        (expiring,) = await open_calls(client, "error")
        async with await psycopg.AsyncConnection.connect(module_database_url) as connection:
            await connection.execute(EXPIRES)
        run = await finished(client, "error")
        late = await answer(http, "error", expiring["call_id"], output=1)
        calls = (await http.get("/runs/error/calls")).json()["calls"]

    assert sent.status_code == 202
    assert failing["call_id"] != expiring["call_id"]
    assert (run["status"], run["usage"]["tool_calls"]) == ("completed", 2)
    assert late.status_code == 409
    assert [(each["status"], each["error"]) for each in calls] == [
        ("answered", error),
        ("expired", None),
    ]
    assert await results(provider, "(error)") == [
        {"error": error["message"], "code": "KeyError"},
        {"error": "The client did not answer within 86400 seconds.", "code": "not_answered"},
    ]


@pytest.mark.req("cw/17.result")
async def test_a_stop_ends_the_wait_at_once(
    service: ServiceProcess, client: JsonClient, provider: FakeProvider
) -> None:
    """An answer after the stop is refused, and the call counts as stopped."""
    await provider.script("(stop)", [Step(tool_calls=[call(1)]), Step(text=ANSWER)])
    async with service.http() as http:
        await client.post_run(agent_run("(stop)", "stop"))
        (waiting,) = await open_calls(client, "stop")
        receipt = await client.cancel_run("stop")
        late = await answer(http, "stop", waiting["call_id"], output=1)
        (stopped,) = (await http.get("/runs/stop/calls")).json()["calls"]
        run = await client.get_run("stop")

    assert receipt["status"] == "cancelled"
    assert (late.status_code, stopped["status"]) == (409, "stopped")
    assert run["required_action"] is None
    assert await provider.count("(stop)") == 1


@pytest.mark.req("cw/17.waiting")
async def test_a_waiting_call_survives_kill_and_is_charged_once(
    database_url: str, service_settings: dict[str, str], provider: FakeProvider
) -> None:
    """It keeps its ID and its place in ``max_tool_calls`` over kills, before and after its end."""
    await provider.script("(kill)", [Step(tool_calls=[call(1)]), Step(text=ANSWER)])
    async with ServiceProcess(database_url, settings=service_settings, name="first") as first:
        async with first.client() as client:
            budget = {"max_tool_calls": 1}
            await client.post_run(agent_run("(kill)", "kill", budget=budget))
            (before,) = await open_calls(client, "kill")
        first.child.kill()
        async with ServiceProcess(database_url, settings=service_settings, name="second") as second:
            async with second.client() as client, second.http() as http:
                (waiting,) = await open_calls(client, "kill")
                sent = await answer(http, "kill", waiting["call_id"], output="found")
            second.child.kill()
        await first.start()
        async with first.client() as client, first.http() as http:
            again = await answer(http, "kill", waiting["call_id"], output="found")
            run = await finished(client, "kill")

    assert before == waiting
    assert (sent.status_code, again.status_code) == (202, 200)
    assert (run["status"], run["usage"]["tool_calls"]) == ("completed", 1), run
    assert await results(provider, "(kill)") == [{"output": "found"}]


@pytest.mark.req("cw/17.waiting")
async def test_parallel_calls_share_the_limit_of_tool_calls(
    service: ServiceProcess, client: JsonClient, provider: FakeProvider
) -> None:
    """Of three calls in one turn the client sees as many as ``max_tool_calls`` allows."""
    steps = [Step(tool_calls=[call(n) for n in (1, 2, 3)]), Step(text=ANSWER)]
    await provider.script("(limit)", steps)
    async with service.http() as http:
        await client.post_run(agent_run("(limit)", "limit", budget={"max_tool_calls": 2}))
        run = await finished(client, "limit")
        calls = (await http.get("/runs/limit/calls")).json()["calls"]

    assert run["status"] == "halted", run
    assert run["usage"]["tool_calls"] == 2
    assert len(calls) <= 2
    assert all(each["status"] == "stopped" for each in calls)


async def test_calls_of_one_turn_are_answered_in_any_order(
    service: ServiceProcess, client: JsonClient, provider: FakeProvider
) -> None:
    """Each answer resumes the run, which waits again for the rest; equal calls are two calls."""
    steps = [Step(tool_calls=[call(1), call(2), {**call(2), "id": "c3"}]), Step(text=ANSWER)]
    await provider.script("(many)", steps)
    async with service.http() as http:
        await client.post_run(agent_run("(many)", "many"))
        calls = await open_calls(client, "many", 3)
        for number, each in enumerate(reversed(calls)):
            assert len(await open_calls(client, "many", 3 - number)) == 3 - number
            order = each["arguments"]["order"]
            await answer(http, "many", each["call_id"], output=[order, number])
        run = await finished(client, "many")

    assert (run["status"], run["usage"]["tool_calls"]) == ("completed", 3)
    read = [each["output"] for each in await results(provider, "(many)")]
    assert [order for order, _ in read] == [1, 2, 2]
    assert sorted(number for _, number in read) == [0, 1, 2]


async def test_a_bad_answer_changes_nothing(
    service: ServiceProcess, client: JsonClient, provider: FakeProvider
) -> None:
    """Each error names the field; the call still waits afterwards."""
    await provider.script("(bad)", [Step(tool_calls=[call(1)]), Step(text=ANSWER)])
    async with service.http() as http:
        await client.post_run(agent_run("(bad)", "bad"))
        (waiting,) = await open_calls(client, "bad")
        path = f"/runs/bad/calls/{waiting['call_id']}/result"
        refused = [(await http.post(path, json=body)).status_code for body in WRONG]
        unknown = await answer(http, "bad", "nothing", output=1)
        approved = await http.post(
            f"/runs/bad/approvals/{waiting['call_id']}", json={"decision": "approve"}
        )
        listed = (await http.get("/runs/bad/approvals")).json()["approvals"]
        of_tenant = (await http.get("/approvals")).json()["approvals"]
        odd = {"deep": [[[[1]]]], "big": 1.5e300}
        content = json.dumps({"output": odd}).encode()
        json_type = {"Content-Type": "application/json"}
        sent = await http.post(path, content=content, headers=json_type)
        again = await http.post(path, content=content, headers=json_type)
        assert (sent.status_code, again.status_code) == (202, 200), sent.text
        run = await finished(client, "bad")

    assert refused == [422] * len(WRONG)
    assert (unknown.status_code, approved.status_code) == (404, 404)
    assert (listed, of_tenant) == ([], [])
    assert run["status"] == "completed", run


async def test_a_client_tool_is_checked_when_the_run_is_accepted(service: ServiceProcess) -> None:
    """A bad name or schema is 422 with its field."""
    places = []
    async with service.http() as http:
        for tool in (
            {**LOOKUP, "name": "look up"},
            {**LOOKUP, "name": "finish"},
            {**LOOKUP, "parameters": {"type": "string"}},
            {**LOOKUP, "parameters": {"type": "object", "properties": 5}},
        ):
            body = agent_run("(never)", "never")
            body["agent"]["tools"] = [{"client": tool}]
            reply = await http.post("/runs", json=body)
            assert reply.status_code == 422, reply.text
            places += [each["field"] for each in reply.json()["errors"]]

    assert places == [
        "agent.tools.0.client.name",
        "agent.tools.0.client.name",
        "agent.tools.0.client.parameters",
        "agent.tools.0.client.parameters",
    ]


@pytest.mark.req("cw/17.result")
async def test_only_the_creator_of_the_run_answers(
    database_url: str, service_settings: dict[str, str], provider: FakeProvider
) -> None:
    """Other keys get 404, and keys without the scope 403; an administrator may answer."""
    operator = "operator-" + "7" * 32
    await provider.script("(keys)", [Step(tool_calls=[call(1)]), Step(text=ANSWER)])
    keyed = service_settings | {"AUTH_BOOTSTRAP_KEY": operator}
    async with ServiceProcess(database_url, settings=keyed) as service:  # noqa: SIM117
        async with service.http(operator) as admin:

            async def key(tenant: str, *scopes: str) -> str:
                body = {"tenant": tenant, "name": "-".join(scopes), "scopes": scopes}
                return str((await admin.post("/keys", json=body)).raise_for_status().json()["key"])

            mine, other = await key("a", "run"), await key("a", "run")
            reader, approver = await key("a", "read"), await key("a", "approve")
            stranger, boss = await key("b", "run"), await key("a", "admin")
            async with service.http(mine) as http:
                posted = await http.post("/runs", json=agent_run("(keys)", "keys"))
                assert posted.status_code == 202, posted.text
                while not (run := (await http.get("/runs/keys")).json())["required_action"]:
                    assert run["finished_at"] is None, run
            (waiting,) = run["required_action"]["calls"]
            statuses = []
            for holder in (other, stranger, reader, approver, "cwk_wrong", mine, boss):
                async with service.http(holder) as http:
                    reply = await answer(http, "keys", waiting["call_id"], output=1)
                    statuses.append(reply.status_code)

    assert statuses == [404, 404, 403, 403, 401, 202, 200]


@pytest.mark.req("cw/17.result")
async def test_a_message_of_a_thread_brings_a_tool_of_its_client(
    service: ServiceProcess, client: JsonClient, provider: FakeProvider
) -> None:
    """The caller that posts the message answers; after a cancel, the retried answer asks again."""
    calling = Step(tool_calls=[call(1)])
    await provider.script("(thread)", [calling, calling, Step(text=ANSWER), Step(text="Bye.")])
    async with service.http() as http:
        thread = await ThreadClient.begin(http, "tools", tools=[{"client": LOOKUP}])
        turn = await thread.post(content="Where? (thread)")
        run_id = turn["run"]["run_id"]
        (stopped,) = await open_calls(client, run_id)
        await client.cancel_run(run_id)
        late = await answer(http, run_id, stopped["call_id"], output=1)
        again = await thread.post(f"{turn['assistant']['message_id']}/retry")
        run_id = again["run"]["run_id"]
        (waiting,) = await open_calls(client, run_id)
        sent = await answer(http, run_id, waiting["call_id"], output="sent")
        run = await finished(client, run_id)
        bye = await thread.answer(content="Thanks.")
        contents = await thread.contents()

    assert (late.status_code, sent.status_code) == (409, 202)
    assert waiting["call_id"] != stopped["call_id"]
    assert (run["status"], run["usage"]["tool_calls"]) == ("completed", 1)
    assert bye["run"]["status"] == "completed"
    assert contents == ["Where? (thread)", ANSWER, "Thanks.", "Bye."]
    assert await results(provider, "(thread)") == [{"output": "sent"}]
