"""The context of a node offers exactly the capabilities that seed 004 lists."""

import ast
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import caseworker.core.graph
from caseworker.core.graph.graph import Channel, Edge
from caseworker.engine.context import FlowContext, Runtime
from tests.support.syntax import parsed
from tests.unit.engine.driving import Scripted, drive, flow, graph, link

Inputs = Mapping[str, Any]


@pytest.mark.req("004/context")
def test_a_node_is_told_where_it_stands_and_what_it_may_use() -> None:
    """The context has the IDs of step, run and chat, and shares state, runtime and services."""
    seen: list[FlowContext] = []

    async def looks(context: FlowContext, inputs: Inputs) -> Inputs:
        context.state[context.node_id] = "was here"
        seen.append(context)
        return {"default": None}

    drive(graph("AB", flow("A", "B")), Scripted(A=looks, B=looks))
    one, other = seen

    assert [context.node_id for context in seen] == ["A", "B"]
    assert {context.run_id for context in seen} == {"run-1"}
    assert one.chat_id is None
    assert replace(one, run=replace(one.run, chat_id="chat-7")).chat_id == "chat-7"
    assert one.state == other.state == {"A": "was here", "B": "was here"}
    assert other.runtime.get_node(other.node_id).id == "B"
    assert one.services is one.run.services


@pytest.mark.req("004/runtime-api", "004/kernel")
def test_the_runtime_has_the_capabilities_of_the_document_and_no_others() -> None:
    """The runtime has no further capabilities; domain objects come from services."""
    assert {name for name in vars(Runtime) if not name.startswith("_")} == {
        "get_node",
        "incoming_edges",
        "outgoing_edges",
        "resolve_links",
        "materialize_output",
        "cache_get",
        "cache_set",
    }


@pytest.mark.req("004/runtime-api")
def test_the_edges_of_a_step_are_found_by_direction_channel_and_handle() -> None:
    """Edges are returned in graph order, filtered by direction, channel and handle."""
    found: dict[str, list[str]] = {}

    async def looks(context: FlowContext, inputs: Inputs) -> Inputs:
        runtime = context.runtime
        found["out"] = [e.target for e in runtime.outgoing_edges("A")]
        found["out flow"] = [e.target for e in runtime.outgoing_edges("A", channel=Channel.FLOW)]
        found["out link"] = [e.target for e in runtime.outgoing_edges("A", channel=Channel.LINK)]
        found["out yes"] = [e.target for e in runtime.outgoing_edges("A", source_handle="yes")]
        found["in"] = [e.source for e in runtime.incoming_edges("C")]
        found["in link"] = [e.source for e in runtime.incoming_edges("C", channel=Channel.LINK)]
        found["in to"] = [e.source for e in runtime.incoming_edges("C", target_handle="to")]
        return {}

    edges = (flow("A", "B", "yes"), link("A", "C"), flow("A", "C", "no"), flow("B", "C", into="to"))
    drive(graph("ABC", *edges), Scripted(A=looks))

    assert found == {
        "out": ["B", "C", "C"],
        "out flow": ["B", "C"],
        "out link": ["C"],
        "out yes": ["B"],
        "in": ["A", "A", "B"],
        "in link": ["A"],
        "in to": ["B"],
    }


@pytest.mark.req("004/guard", "004/channel")
def test_an_edge_has_no_channel_unless_it_is_given_one() -> None:
    """Creating an edge without a channel raises TypeError."""
    with pytest.raises(TypeError, match="channel"):
        Edge(source="A", target="B")  # type: ignore[call-arg]


@pytest.mark.req("004/guard")
def test_the_kernel_branches_on_the_name_of_no_handle_and_of_no_type() -> None:
    """The engine compares no handle or type name, so all names are scheduled and routed alike."""
    folder = Path(caseworker.core.graph.__path__[0])
    compared = {
        f"{path.name}:{node.lineno}"
        for path in folder.glob("*.py")
        for node in ast.walk(parsed(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Compare) and _asks_for_a_name([node.left, *node.comparators])
    }

    assert compared == set()


def _asks_for_a_name(sides: list[ast.expr]) -> bool:
    texts = [side for side in sides if isinstance(side, ast.Constant) and side.value]
    names = [ast.unparse(side) for side in sides if side not in texts]
    return bool(texts) and any("handle" in name or "type" in name for name in names)
