"""Registered graphs and the real catalog of nodes work together."""

from itertools import pairwise
from typing import Any

import pytest

from caseworker.nodes.nesting import DefinitionKind
from caseworker.platform.fair_threads import PacedThread
from caseworker.runs.accept.definitions import Definitions
from caseworker.runs.errors import GraphRefusedError
from caseworker.runs.run import DefinitionRef
from tests.support.api import Api
from tests.support.graph_documents import TENANT, edge, named
from tests.support.limits import graph_limits

pytestmark = pytest.mark.asyncio(loop_scope="module")

CALCULATION = {"tool": "calculator", "args": {"expression": "${default} + 1"}}
PLUS_ONE: dict[str, Any] = {
    "steps": [{"id": "plus", "type": "tool", "data": CALCULATION}],
    "edges": [],
}


def holding(*graphs: dict[str, Any]) -> dict[str, Any]:
    """Return a graph of subgraphs in sequence."""
    ids = [f"inner-{index}" for index in range(len(graphs))]
    steps = [
        {"id": step_id, "type": "subgraph", "data": {"graph": graph}}
        for step_id, graph in zip(ids, graphs, strict=True)
    ]
    edges = [edge(one, other, channel="flow") for one, other in pairwise(ids)]
    return {"steps": steps, "edges": edges}


@pytest.fixture
def graphs(api: Api) -> Definitions:
    return Definitions(api.definitions, api.catalog, graph_limits(), PacedThread())


@pytest.mark.req("004/subgraph")
async def test_a_graph_that_holds_registered_ones_is_complete_and_valid(
    graphs: Definitions,
) -> None:
    """References work in subgraphs at any depth, in the data of a map and in fallbacks."""
    await graphs.register(TENANT, DefinitionRef("plus-one"), PLUS_ONE)
    await graphs.register(
        TENANT, DefinitionRef("twice"), holding(named("plus-one"), named("plus-one", 1))
    )
    graph = holding(holding(named("twice")), named("plus-one"))
    graph["steps"][1]["policy"] = {
        "on_error": "fallback",
        "fallback": {"type": "subgraph", "data": {"graph": named("plus-one")}},
    }
    graph["steps"].append({"id": "all", "type": "map", "data": {"graph": named("plus-one")}})

    complete = (await graphs.inline(TENANT, graph, DefinitionKind.GRAPH)).graph

    assert await graphs.problems(TENANT, complete, DefinitionKind.GRAPH) == ()
    assert str(complete).count("'type': 'tool'") == 2 + 1 + 1 + 1


async def test_what_is_not_registered_is_said_once(graphs: Definitions) -> None:
    """The catalog adds no error for an unresolved name, and its own errors are listed too."""
    graph = holding(named("nowhere"), PLUS_ONE, {"name": 5})
    graph["steps"][1]["type"] = "unknown"

    with pytest.raises(GraphRefusedError) as refused:
        await graphs.inline(TENANT, graph, DefinitionKind.GRAPH)

    places = [problem.place for problem in refused.value.problems]
    assert places[0] == "steps.0.data.graph.name"
    assert not any(place.startswith("steps.0.") for place in places[1:])
    assert {"steps.1.type"} < set(places)
    assert any(place.startswith("steps.2.data") for place in places)
