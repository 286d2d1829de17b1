"""Tools that the client of a run executes: a call waits, and is answered exactly once."""

import asyncio
from typing import Any

import httpx
import pytest

from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.json_client import JsonClient
from tests.support.service import ServiceProcess, finished

LOOKUP: dict[str, Any] = {
    "name": "look_up",
    "description": "Looks up an order.",
    "parameters": {
        "type": "object",
        "properties": {"order": {"type": "integer"}},
        "required": ["order"],
    },
}
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
    """Wait until a run has released its worker for so many calls, and return them."""
    async with asyncio.timeout(150):
        while True:
            run = await client.get_run(run_id)
            assert run["finished_at"] is None, run
            calls: list[dict[str, Any]] = (run["required_action"] or {}).get("calls", [])
            if run["status"] == "waiting" and len(calls) == count:
                return calls
            await asyncio.sleep(0.02)


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
        trace = await client.trace("one")
        first = await answer(http, "one", waiting["call_id"], output={"state": "sent"})
        again = await answer(http, "one", waiting["call_id"], output={"state": "sent"})
        other = await answer(http, "one", waiting["call_id"], output={"state": "lost"})
        run = await finished(client, "one")
        late = await answer(http, "one", waiting["call_id"], output={"state": "sent"})
        calls = (await http.get("/runs/one/calls")).json()["calls"]

    assert (waiting["author"], waiting["name"]) == ("client", "look_up")
    assert waiting["arguments"] == {"order": 7}
    assert [each["call_id"] for each in listed] == [waiting["call_id"]]
    (node,) = (each for each in trace["steps"][0]["calls"] if each["name"] == "look_up")
    assert node["status"] == "waiting", trace
    assert (first.status_code, again.status_code, other.status_code) == (202, 200, 409)
    assert late.status_code == 200
    assert run["status"] == "completed", run
    assert run["usage"]["tool_calls"] == 1
    assert run["required_action"] is None
    assert [(each["status"], each["output"]) for each in calls] == [("answered", {"state": "sent"})]
    last = (await provider.arrivals("(one)"))[-1]
    assert '{"output": {"state": "sent"}}' in str(last) or "sent" in str(last)
