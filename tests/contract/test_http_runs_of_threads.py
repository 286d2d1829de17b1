"""Runs of threads over HTTP name their thread and agent, and can be filtered by both."""

from typing import Any

import httpx
import pytest

from tests.support.threads import AGENT, ThreadClient

pytestmark = pytest.mark.asyncio(loop_scope="module")

GRAPH = {"steps": [{"id": "chat", "type": "chat_start", "data": {}}], "edges": []}


async def found(client: httpx.AsyncClient, **wanted: str) -> list[dict[str, Any]]:
    """Return a list of runs."""
    listed = await client.get("/runs", params=wanted)
    assert listed.status_code == 200, listed.text
    runs: list[dict[str, Any]] = listed.json()["runs"]
    return runs


@pytest.mark.req("cw/13.input")
async def test_a_run_of_a_thread_names_its_thread_and_its_agent(client: httpx.AsyncClient) -> None:
    """The run and the lists show the version that answers."""
    for number in range(2):
        await client.post("/agents", json={"agent": {**AGENT, "prompt": {"system": f"{number}"}}})
    thread = await ThreadClient.begin(client, "talk", agent={"name": "helper"})
    turn = await thread.post(content="1?")
    run = (await client.get(f"/runs/{turn['run']['run_id']}")).json()
    (listed,) = await found(client)

    for shown in (turn["run"], run, listed):
        assert shown["thread_id"] == "talk"
        assert shown["agent"] == {"name": "helper", "version": 2}
        assert shown["graph"] is None


async def test_a_run_of_a_thread_names_its_graph(client: httpx.AsyncClient) -> None:
    """A registered graph has a name and a version; one that was sent along has neither."""
    await client.post("/graphs", json={"name": "echo", "graph": GRAPH})
    named = await ThreadClient.begin(client, "named", graph={"name": "echo"})
    inline = await ThreadClient.begin(client, "inline", graph=GRAPH)
    of_named = (await named.post(content="1?"))["run"]
    of_inline = (await inline.post(content="1?"))["run"]

    assert (of_named["graph"], of_named["agent"]) == ({"name": "echo", "version": 1}, None)
    assert (of_inline["graph"], of_inline["agent"]) == (None, None)
    assert of_inline["thread_id"] == "inline"


async def test_runs_are_found_by_agent_and_by_thread(client: httpx.AsyncClient) -> None:
    """An agent's runs are those of its threads too; a graph of the same name is no agent."""
    await client.post("/agents", json={"agent": AGENT})
    await client.post("/graphs", json={"name": "helper", "graph": GRAPH})
    talk = await ThreadClient.begin(client, "talk", agent={"name": "helper"})
    other = await ThreadClient.begin(client, "other", graph={"name": "helper"})
    await talk.post(content="1?", run_id="first")
    await other.post(content="1?", run_id="second")
    body = {"kind": "agent", "run_id": "alone", "agent": {"name": "helper"}, "input": "1?"}
    await client.post("/runs", json=body)

    assert [run["run_id"] for run in await found(client, agent="helper")] == ["alone", "first"]
    assert [run["run_id"] for run in await found(client, thread_id="talk")] == ["first"]
    assert [run["run_id"] for run in await found(client, thread_id="other")] == ["second"]
    assert await found(client, thread_id="absent") == []
    (alone, *_) = await found(client, agent="helper")
    assert alone["thread_id"] is None


async def test_a_run_that_goes_on_from_one_of_a_thread_names_the_same(
    client: httpx.AsyncClient,
) -> None:
    """The source run determines the agent and the thread."""
    await client.post("/agents", json={"agent": AGENT})
    thread = await ThreadClient.begin(client, "talk", agent={"name": "helper"})
    await thread.post(content="1?", run_id="first")
    await client.delete("/runs/first")
    going_on = await client.post("/runs", json={"from": {"run_id": "first"}, "run_id": "second"})

    assert going_on.status_code == 202, going_on.text
    assert going_on.json()["agent"] == {"name": "helper", "version": 1}
    assert going_on.json()["thread_id"] == "talk"
