"""Agents over real sockets: a service, a streaming provider and a following client."""

from typing import Any

import pytest

from tests.support.agent_runs import ANSWER, CALL, agent_run
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.graph_invariants import violations
from tests.support.json_client import JsonClient
from tests.support.service import ServiceProcess, finished

TURNS = {"turn_start", "content_chunk", "tool_call_start", "tool_call_end", "usage", "turn_end"}


def text_of(events: list[dict[str, Any]], turn: int) -> str:
    """Return the text that a client shows for a turn."""
    text = ""
    for event in events:
        if event["type"] == "content_chunk" and event["data"]["turn_number"] == turn:
            text = text[: event["data"]["offset"]] + event["data"]["content"]
    return text


@pytest.mark.req("003/FR3.1", "003/FR3.4", "003/FR2.5")
async def test_an_agent_works_as_a_step_of_a_posted_graph(
    service: ServiceProcess, provider: FakeProvider
) -> None:
    """The agent's events report turns, calls and the answer; its result contains the messages."""
    steps = [Step(tool_calls=[CALL]), Step(text=ANSWER, chunk_chars=6)]
    await provider.script("(whole)", steps)
    async with service.client() as client:
        await client.post_run(agent_run("whole"))
        run = await finished(client, "whole")
        snapshot = (await client.trace("whole"))["snapshot"]
        seen = [event async for event in client.events("whole")]

    assert run["status"] == "completed", run
    outputs = run["result"]["outputs"]["a"]
    assert outputs["default"] == ANSWER
    assert (outputs["result"]["success"], outputs["result"]["turn_count"]) == (True, 2)
    assert [one["role"] for one in outputs["result"]["messages"]] == [
        "system",
        "user",
        "assistant",
        "tool",
        "assistant",
    ]
    assert run["usage"]["turns"] == 2
    told = [event["type"] for event in seen if event["type"] in TURNS]
    assert told[:5] == ["turn_start", "usage", "tool_call_start", "tool_call_end", "turn_end"]
    assert (told[5], told[-2], told[-1]) == ("turn_start", "usage", "turn_end")
    assert text_of(seen, 2) == ANSWER
    assert violations(snapshot) == []


async def test_a_run_that_was_cancelled_before_it_resumed_returns_its_messages_at_once(
    client: JsonClient, provider: FakeProvider
) -> None:
    """The messages that it imported are stored as references to calls."""
    await provider.script("(imported)", [Step(text=ANSWER)])
    body = {"kind": "agent", "agent": {"name": "a", "prompt": {}}, "input": "(imported)"}
    old = await client.post_run({"run_id": "source", **body}, wait_seconds=60)
    await client.cancel_run("resumed")

    run = await client.post_run({"run_id": "resumed", "from": {"run_id": "source"}})

    assert run["status"] == "cancelled"
    assert run["result"]["messages"] == old["result"]["messages"]
