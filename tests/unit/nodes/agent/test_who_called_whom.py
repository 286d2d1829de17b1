"""The trace of a run is its call tree."""

from collections.abc import Mapping
from typing import Any

import pytest

from caseworker.core.budget.budget import Budget
from caseworker.core.trace.analysis import first_halted
from caseworker.core.trace.explain import explain
from caseworker.core.trace.node import path_of
from caseworker.core.trace.snapshot import Snapshot
from caseworker.core.trace.spans import TOOL, TOOL_CALL_ID, TraceContext, spans_of
from tests.unit.cases.agent.world import cannot, case_run
from tests.unit.cases.agent.world import plan as planned
from tests.unit.nodes.agent.world import agent, asking, model_reply, scripted_agent, wants

CALCULATOR = {"expression": "1+1"}


def names(snapshot: Snapshot) -> Mapping[str, str]:
    """Return a name for each node: its kind and the path of its call or step."""
    found = {}
    for node_id, node in snapshot["nodes"].items():
        about = node["metadata"]
        found[node_id] = f"{node['kind']} {about.get('call_key') or path_of(node, about)}"
    return found


def parents(snapshot: Snapshot) -> dict[str, str]:
    """Return the name of each node's parent, by the name of the node."""
    name = names(snapshot)
    return {
        name[node_id]: name[node["parent_id"]]
        for node_id, node in snapshot["nodes"].items()
        if node["parent_id"] is not None
    }


def agent_run(**settings: Any) -> Any:
    """Run an agent that calls two tools at once and a sub-agent, which calls a tool."""
    inner = agent(name="inner", tools=["calculator"])
    return scripted_agent(
        model_reply("", wants("echo", "c1", say="a"), wants("echo", "c2", say="b")),
        model_reply("", wants("inner", "c3", input="Go.")),
        model_reply("", wants("calculator", "c4", **CALCULATOR)),
        "Two.",
        "It is two.",
        **settings,
    ), asking(agent(tools=["echo", {"agent": inner}]))


TREE = {
    "system a": "system run",
    "llm a/turn/1": "system a",
    "tool a/turn/1/tool/1": "llm a/turn/1",
    "tool a/turn/1/tool/2": "llm a/turn/1",
    "llm a/turn/2": "system a",
    "system a/turn/2/tool/1": "llm a/turn/2",
    "llm a/turn/2/tool/1/turn/1": "system a/turn/2/tool/1",
    "tool a/turn/2/tool/1/turn/1/tool/1": "llm a/turn/2/tool/1/turn/1",
    "llm a/turn/2/tool/1/turn/2": "system a/turn/2/tool/1",
    "llm a/turn/3": "system a",
}


@pytest.mark.req("cw/7.parents", "001/wiring", "003/NFR3.3")
async def test_the_parent_of_a_call_is_the_llm_call_whose_answer_names_it() -> None:
    """The tree covers parallel tools, a sub-agent and the sub-agent's tools."""
    here, graph = agent_run()

    await here.run(graph, default="?")

    snapshot = here.trace.snapshot()
    assert parents(snapshot) == TREE
    [called] = [node for node in snapshot["nodes"].values() if node["metadata"].get("path")]
    assert called["name"] == "inner"
    steps = [here.trace.step_of(node_id) for node_id in snapshot["nodes"]]
    assert sorted(set(steps)) == ["a", "a/turn/2/tool/1", "run"]
    assert snapshot["aggregates"]["max_depth"] == 5


@pytest.mark.req("001/wiring")
async def test_the_text_and_the_spans_of_a_run_show_the_same_tree() -> None:
    """``explain`` indents a call below its parent; a span names its parent's span."""
    here, graph = agent_run()

    await here.run(graph, default="?")

    snapshot = here.trace.snapshot()
    rows = [row for row in explain(snapshot).splitlines() if row.startswith("n0")]
    depths = [len(row[8:]) - len(row[8:].lstrip(" │├└─")) for row in rows]
    # run, step, llm, two tools, llm, sub-agent, llm, tool, llm; then the last turn of the agent
    assert depths == [0, 3, 6, 9, 9, 6, 9, 12, 15, 12, 6]
    here.trace.mark_success("n000001", 0)
    spans = list(spans_of(here.trace.snapshot(), TraceContext("0" * 32), tenant=""))
    name, by_id = names(snapshot), {span.span_id: span for span in spans}
    assert {
        name[str(span.attributes["caseworker.node.id"])]: name[
            str(by_id[span.parent_id].attributes["caseworker.node.id"])
        ]
        for span in spans
        if span.parent_id is not None
    } == TREE


@pytest.mark.req("cw/7.parents", "001/wiring")
async def test_the_tools_of_a_case_are_children_of_the_plan_that_names_them() -> None:
    """If the first reply was no plan, the parent is the reprompt; each pass has its own plan."""
    action = ("calculator", CALCULATOR)
    replies = ['{"no": "plan"}', planned(action), planned(action, action), cannot()]
    here = case_run(replies, big=[cannot(), cannot()])

    await here.run(gold_answer="3")

    found = parents(here.trace.snapshot())
    assert {name: parent for name, parent in found.items() if name.startswith("tool")} == {
        "tool answer/small/1/act/1": "llm answer/small/1/reprompt",
        "tool answer/small/2/act/1": "llm answer/small/2/plan",
        "tool answer/small/2/act/2": "llm answer/small/2/plan",
    }
    assert found["llm answer/small/1/plan"] == found["llm answer/small/2/plan"] == "system answer"


async def test_the_span_of_a_tool_names_the_call_of_the_models_reply() -> None:
    """The span carries the call ID from the model's reply."""
    here, graph = agent_run()

    await here.run(graph, default="?")

    context = TraceContext("ab" * 16)
    made = spans_of(here.trace.snapshot(), context, tenant="")
    ids = [span.attributes.get(TOOL_CALL_ID) for span in made if span.name.startswith(TOOL)]
    assert ids == ["c1", "c2", "c4"]


@pytest.mark.req("001/node", "001/wiring")
async def test_only_model_calls_count_tokens() -> None:
    """Tools, steps and refused calls have null as their numbers of tokens."""
    here, graph = agent_run(budget=Budget(max_tool_calls=2))

    await here.run(graph, default="?")

    nodes = here.trace.snapshot()["nodes"].values()
    counted = [node for node in nodes if node["tokens_in"] is not None]
    assert {(node["kind"], node["status"]) for node in counted} == {("llm", "success")}
    tools = [node["status"] for node in nodes if node["kind"] == "tool"]
    assert tools == ["success", "success", "halt"]


@pytest.mark.req("cw/7.parents")
async def test_the_way_to_the_halted_call_shows_which_subtree_was_running() -> None:
    """The path leads from the run through each calling node to the refused call."""
    here, graph = agent_run(budget=Budget(max_tool_calls=2))

    outcome = await here.run(graph, default="?")

    assert outcome.stop is not None
    snapshot = here.trace.snapshot()
    halted = first_halted(snapshot)
    assert halted is not None
    name, parent = names(snapshot), parents(snapshot)
    way = [name[halted["node_id"]]]
    while way[-1] in parent:
        way.append(parent[way[-1]])
    parts = way[0].removeprefix("tool ").split("/")  # such as a/turn/2/tool/1/turn/1/tool/1
    keys = ["/".join(parts[:count]) for count in range(len(parts), 0, -2)]
    assert [each.split()[1] for each in way] == [*keys, "run"]
    assert len(keys) > 2
