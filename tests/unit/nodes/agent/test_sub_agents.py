"""Agents that call agents, and links to agents and to steps that call models."""

import pytest

from caseworker.core.budget.budget import Budget
from caseworker.core.trace.node import path_of
from tests.unit.cases.agent.world import provider_down
from tests.unit.nodes.agent.world import (
    agent,
    asking,
    calculate,
    kinds,
    model_reply,
    result,
    scripted_agent,
    wants,
)
from tests.unit.nodes.world import NodeRun, graph, link, step


@pytest.mark.req("003/sub", "001/wiring")
async def test_an_agent_calls_an_agent() -> None:
    """The sub-agent has its own scope and path; its parent is the LLM call that called it."""
    inner = agent(
        name="adder",
        description="Adds.",
        prompt={"system": "Add ${what}."},
        inputs={"what": {"type": "string"}},
        tools=["calculator"],
    )
    here = scripted_agent(
        model_reply("", wants("adder", input="Now.", what="numbers")),
        model_reply("", calculate("1+1")),
        "Two.",
        "It is two.",
    )

    outcome = await here.run(asking(agent(tools=[{"agent": inner}])), default="?")

    assert outcome.steps["a"].outputs["default"] == "It is two."
    offered = here.small.requests[0].tools[0]
    assert (offered.name, offered.parameters["required"]) == ("adder", ["input", "what"])
    assert here.small.requests[1].messages[0].content == "Add numbers."
    assert kinds(here, "a/turn/1/tool/1") == [
        "turn_start",
        "usage",
        "tool_call_start",
        "tool_call_end",
        "turn_end",
        "turn_start",
        "content_chunk",
        "usage",
        "turn_end",
    ]
    assert here.scope.usage.to_dict()["turns"] == 4
    nodes = here.trace.snapshot()["nodes"].values()
    keys = {
        node["node_id"]: node["metadata"].get("call_key") or path_of(node, node["metadata"])
        for node in nodes
    }
    parents = {keys[node["node_id"]]: node["parent_id"] for node in nodes}
    called = "a/turn/1/tool/1"
    assert keys[str(parents[called])] == "a/turn/1"
    assert keys[str(parents[f"{called}/turn/1"])] == called
    assert keys[str(parents[f"{called}/turn/1/tool/1"])] == f"{called}/turn/1"
    assert here.small.requests[3].messages[-1].content == '{"output":"Two."}'


@pytest.mark.req("003/sub")
async def test_what_ends_an_inner_agent_alone_is_a_result_for_its_caller() -> None:
    """The sub-agent's own limit or failure is reported to its caller as a tool result."""
    inner = agent(name="inner", tools=["calculator"], limits={"max_turns": 1})
    here = scripted_agent(
        model_reply("", wants("inner", "c1", input="Go.")),
        model_reply("Half.", calculate("1+1")),
        model_reply("", wants("inner", "c2", input="Go again.")),
        provider_down(),
        "It could not.",
    )

    outcome = await here.run(asking(agent(tools=[{"agent": inner}])), default="?")

    assert outcome.steps["a"].outputs["default"] == "It could not."
    assert '"code":"max_turns","so_far":"Half."' in here.small.requests[2].messages[-1].content
    assert '"code":"CallFailedError"' in here.small.requests[4].messages[-1].content


@pytest.mark.req("003/sub")
async def test_the_limit_of_the_caller_ends_both() -> None:
    """A limit of the caller's scope is not the sub-agent's own limit."""
    inner = agent(name="inner", tools=["calculator"])
    here = scripted_agent(
        model_reply("", wants("inner", input="Go.")),
        model_reply("", calculate("1+1")),
        "never",
        budget=Budget(max_llm_calls_small=1),
    )

    outcome = await here.run(asking(agent(tools=[{"agent": inner}])), default="?")

    assert outcome.stop is not None
    assert outcome.stop.cause.scope == "run"
    assert result(outcome)["terminate_reason"] == "budget"


@pytest.mark.req("003/sub", "004/pipeline")
async def test_agents_and_toolsets_are_linked_to_agents() -> None:
    """A linked agent has its own links."""
    here = scripted_agent(
        model_reply("", wants("inner", input="Go.")),
        model_reply("", wants("echo", say="hi")),
        "Said.",
        "All said.",
    )
    parts = graph(
        step("a", "agent", {"agent": agent()}),
        step("b", "agent", {"agent": agent(name="inner")}),
        step("t", "toolset", {"tools": ["echo"]}),
        link("b", "a"),
        link("t", "b"),
    )

    outcome = await here.run(parts, default="?")

    assert outcome.steps["a"].outputs["default"] == "All said."
    assert [tool.name for tool in here.small.requests[0].tools] == ["inner", "finish"]
    assert [tool.name for tool in here.small.requests[1].tools] == ["echo", "finish"]
    assert "b" not in outcome.steps


async def test_a_step_that_asks_a_model_uses_linked_tools() -> None:
    """The step uses the tools over several turns."""
    here: NodeRun = scripted_agent(model_reply("", wants("echo", say="hi")), "It says hi.")
    parts = graph(
        step("ask", "llm", {"prompt": "Say ${default}."}),
        step("t", "toolset", {"tools": ["echo"]}),
        link("t", "ask"),
    )

    assert await here.value(parts, "ask", default="hi") == "It says hi."
    assert [tool.name for tool in here.small.requests[0].tools] == ["echo", "finish"]
