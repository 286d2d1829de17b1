"""Agents in Python with the AgentExecutor of document 003."""

import asyncio
from collections.abc import Mapping
from itertools import groupby
from typing import Any

import pytest

from caseworker import (
    AgentResult,
    Budget,
    CancellationToken,
    Event,
    ExecutionContext,
    run_agent,
)
from caseworker_cases.tools.calculator import Calculator
from tests.unit.cases.agent.world import WaitingTool, provider_down
from tests.unit.nodes.agent.world import Gate, Line, Lines, agent, calculate, model_reply, wants


async def ran(
    *lines: Line, definition: Mapping[str, Any] | None = None, **options: Any
) -> AgentResult:
    """Run an agent with a scripted model."""
    options = {"input": "What is 6 times 7?", "tools": [Calculator()], **options}
    given = definition or agent(tools=["calculator"])
    return await run_agent(given, provider=Lines(list(lines)), model="m", **options)


@pytest.mark.req("003/FR1.3", "003/FR3.1", "003/FR2.5")
async def test_an_agent_runs_with_a_definition_inputs_tools_and_a_listener() -> None:
    """The result has every field of the document, and events arrive during the run."""
    definition = agent(
        prompt={"system": "Answer in ${language}."},
        inputs={"language": {"type": "string"}},
        tools=["calculator"],
    )
    events: list[Event] = []

    result = await ran(
        model_reply("", calculate("6 * 7")),
        "It is 42.",
        definition=definition,
        inputs={"language": "English"},
        on_event=events.append,
    )

    assert (result.success, result.output, result.raw_content) == (True, "It is 42.", "It is 42.")
    assert (result.terminate_reason, result.error, result.turn_count) == ("goal", None, 2)
    assert [message["role"] for message in result.messages] == [
        *("system", "user", "assistant", "tool", "assistant"),
    ]
    assert result.messages[0]["content"] == "Answer in English."
    shown = [event.type for event in events if "_" in event.type]
    assert [kind for kind, _ in groupby(shown)] == [
        *("turn_start", "tool_call_start", "tool_call_end", "turn_end"),
        *("turn_start", "content_chunk", "turn_end"),
    ]
    assert "tool calculator" in result.run.explain()


@pytest.mark.req("003/FR2.3", "003/NFR2.1")
async def test_the_result_of_an_agent_that_did_not_succeed_says_why() -> None:
    """A failed model, a limit and a cancellation each keep the partial result."""
    failed = await ran(model_reply("So far.", calculate("1+1")), provider_down())
    limit = ExecutionContext(budget=Budget(max_llm_calls_small=0))
    halted = await ran("never", context=limit)
    token, tool = CancellationToken(), WaitingTool()
    options = {"tools": [tool], "context": ExecutionContext(cancellation=token)}
    waits = asyncio.create_task(
        ran(model_reply("", wants("waiting")), definition=agent(tools=["waiting"]), **options)
    )
    await tool.called.wait()
    token.cancel("no longer needed")
    aborted = await waits

    assert not any((failed.success, halted.success, aborted.success))
    assert (failed.terminate_reason, failed.raw_content) == ("error", "So far.")
    assert failed.error is not None
    assert "The provider refused." in failed.error
    assert halted.terminate_reason == "budget"
    assert failed.error_class == "ModelRequestRefused"
    assert "call limit exceeded" in str(halted.error)
    assert halted.error_class == "BudgetExceededError"
    assert aborted.terminate_reason == "aborted"
    assert "no longer needed" in str(aborted.error)


@pytest.mark.req("003/FR1.2")
async def test_what_cannot_begin_is_an_error() -> None:
    """An invalid definition, missing inputs and an unknown tool raise an error."""
    with pytest.raises(ValueError, match="name"):
        await ran(definition={"prompt": {}})
    asks = agent(inputs={"topic": {"type": "string"}}, prompt={"system": "${topic}"})
    with pytest.raises(ValueError, match="topic"):
        await ran(definition=asks)
    with pytest.raises(ValueError, match="has no request"):
        await ran(definition=agent(), input=None)
    unknown = await ran(definition=agent(tools=["abacus"]))
    assert "abacus" in str(unknown.error)


@pytest.mark.req("003/sub", "003/FR2.3")
async def test_cancelling_a_caller_ends_the_sub_agent_that_works_for_it() -> None:
    """The sub-agent's tool is cancelled, and no model is called again."""
    token, gate, called = CancellationToken(), Gate(), asyncio.Event()
    inner = agent(name="inner", tools=["gate"])
    model = Lines(
        [model_reply("", wants("inner", input="Go.")), model_reply("", wants("gate", n=1)), "never"]
    )

    def listen(event: Event) -> None:
        if event.type == "call.started" and event.data["kind"] == "tool":
            called.set()

    work = run_agent(
        agent(tools=[{"agent": inner}]),
        input="?",
        provider=model,
        model="m",
        tools=[gate],
        context=ExecutionContext(cancellation=token),
        on_event=listen,
    )
    running = asyncio.create_task(work)
    await called.wait()

    token.cancel("no longer needed")
    result = await running

    assert (result.success, result.terminate_reason) == (False, "aborted")
    assert (gate.began, gate.cancelled, len(model.requests)) == ([1], [1], 2)
    nodes = result.run.calls.snapshot()["nodes"].values()
    ended = {node["name"]: (node["status"], node["stop_reason"]) for node in nodes}
    assert result.run.status == "cancelled"
    for name in ("agent", "inner", "gate"):
        status, reason = ended[name]
        assert (status, "no longer needed" in str(reason)) == ("halt", True), (name, reason)
