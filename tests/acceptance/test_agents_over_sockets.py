"""Agents over real sockets: a service, a provider that streams, a client that follows."""

import asyncio
from contextlib import aclosing
from typing import Any

import pytest

from tests.support.event_log import require_sound_events
from tests.support.fake_provider.client import FakeProvider
from tests.support.fake_provider.script import Step
from tests.support.graph_invariants import violations
from tests.support.memory_rows import RUN_ENDS
from tests.support.service import ServiceProcess, finished, model_settings

ANSWER = "It is 42, as everybody knows who has read so far, and there is no doubt about it."
CALL = {"id": "c1", "name": "calculator", "arguments": '{"expression": "6 * 7"}'}
TURNS = {"turn_start", "content_chunk", "tool_call_start", "tool_call_end", "usage", "turn_end"}


def agent_run(run_id: str, **more: Any) -> dict[str, Any]:
    """A run of a graph whose one step is an agent."""
    agent = {
        "name": "helper",
        "prompt": {"system": "Help with ${topic}."},
        "inputs": {"topic": {"type": "string"}},
        "tools": ["calculator"],
        **more,
    }
    data = {"agent": agent, "inputs": {"topic": "sums"}}
    return {
        "run_id": run_id,
        "kind": "graph",
        "graph": {"steps": [{"id": "a", "type": "agent", "data": data}], "edges": []},
        "inputs": {"default": f"6 times 7? ({run_id})"},
    }


def text_of(events: list[dict[str, Any]], turn: int) -> str:
    """What a client shows of a turn."""
    text = ""
    for event in events:
        if event["type"] == "content_chunk" and event["data"]["turn_number"] == turn:
            text = text[: event["data"]["offset"]] + event["data"]["content"]
    return text


@pytest.mark.req("003/FR3.1", "003/FR3.4", "003/FR2.5")
async def test_an_agent_works_as_a_step_of_a_posted_graph(
    service: ServiceProcess, provider: FakeProvider
) -> None:
    """Its events tell of turns, calls and the answer; its result has the messages."""
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


@pytest.mark.req("003/FR2.1")
async def test_the_turns_of_a_run_are_limited_by_its_budget(
    service: ServiceProcess, provider: FakeProvider
) -> None:
    """The run halts, with a last answer."""
    await provider.script("(turns)", [Step(tool_calls=[CALL]), Step(text="About 42.")])
    async with service.client() as client:
        body = agent_run("turns")
        await client.post_run({**body, "budget": {"max_turns": 1, "max_steps": 5}})
        run = await finished(client, "turns")

    assert (run["status"], run["stop"]["kind"], run["stop"]["dimension"]) == (
        "halted",
        "budget",
        "turns",
    )
    result = run["result"]["outputs"]["a"]["result"]
    assert (result["terminate_reason"], result["output"]) == ("max_turns", "About 42.")


@pytest.mark.req("003/resume", "003/FR3.4")
async def test_an_answer_whose_process_is_killed_is_told_to_its_end_by_another(
    database_url: str, provider: FakeProvider
) -> None:
    """The client misses nothing and sees nothing twice; what was finished is not made again."""
    settings = model_settings(provider.openai_url)
    held = Step(text=ANSWER, chunk_chars=6, after_events=6, then="hold")
    await provider.script("(killed)", [Step(tool_calls=[CALL]), held])
    async with (
        ServiceProcess(database_url, settings=settings, name="first") as first,
        ServiceProcess(database_url, settings=settings, name="second") as second,
        second.client() as client,
    ):
        async with first.client() as posting:
            await posting.post_run(agent_run("killed"))
        seen: list[dict[str, Any]] = []
        async with asyncio.timeout(150), aclosing(client.events("killed")) as events:
            async for event in events:
                seen.append(event)
                if event["type"] == "content_chunk" and first.child.exit_code is None:
                    await provider.script("(killed)", [Step(text=ANSWER, chunk_chars=6)])
                    first.child.kill()
                    await provider.release()
                if event["type"] in RUN_ENDS:
                    break
        run = await finished(client, "killed")

    assert run["status"] == "completed", run
    assert run["result"]["outputs"]["a"]["default"] == ANSWER
    assert [event["seq"] for event in seen] == list(range(1, len(seen) + 1))
    assert text_of(seen, 2) == ANSWER
    once = [event["type"] for event in seen if event["type"] in TURNS - {"content_chunk"}]
    assert once == [
        "turn_start",
        "usage",
        "tool_call_start",
        "tool_call_end",
        "turn_end",
        "turn_start",
        "usage",
        "turn_end",
    ]
    assert len(await provider.arrivals("(killed)")) == 3
    assert run["usage"]["tool_calls"] == 1
    require_sound_events(database_url)


@pytest.mark.req("003/sub")
async def test_an_agent_calls_another_one_and_both_are_traced(
    service: ServiceProcess, provider: FakeProvider
) -> None:
    """The inner one stands below the call; its events have its own path."""
    inner = {"name": "adder", "prompt": {"system": "Add (inner)."}, "tools": ["calculator"]}
    ask = {"id": "c1", "name": "adder", "arguments": '{"input": "6 times 7"}'}
    await provider.script("(outer)", [Step(tool_calls=[ask]), Step(text="It is 42.")])
    await provider.script("(inner)", [Step(tool_calls=[CALL]), Step(text="42")])
    async with service.client() as client:
        await client.post_run(agent_run("outer", tools=[{"agent": inner}]))
        run = await finished(client, "outer")
        trace = await client.trace("outer")
        explained = await client.explain("outer")
        seen = [event async for event in client.events("outer")]

    assert run["status"] == "completed", run
    assert run["result"]["outputs"]["a"]["default"] == "It is 42."
    assert run["usage"]["turns"] == 4
    assert violations(trace["snapshot"]) == []
    assert "a/turn/1/tool/1" in explained
    inside = [event["type"] for event in seen if event["step_id"] == "a/turn/1/tool/1"]
    assert inside.count("turn_start") == inside.count("turn_end") == 2
