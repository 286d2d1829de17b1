"""The size of a graph, including the graphs inside it."""

from typing import Any

import pytest

from caseworker.runs.accept.expansion import GraphSize, canonical
from tests.support.graph_documents import containing, edge, flat, named
from tests.support.limits import graph_limits


def nested(depth: int) -> dict[str, Any]:
    graph = flat("a")
    for _ in range(depth - 1):
        graph = containing(graph)
    return graph


def test_steps_and_edges_of_all_graphs_inside_count() -> None:
    """Nested graphs count at any depth and in steps of any type."""
    inner = flat("a", "b")
    inner["edges"] = [edge("a", "b", channel="flow")]
    by_step = {
        "steps": [{"id": "m", "type": "map", "data": {"step": containing(inner)["steps"][0]}}]
    }
    by_fallback = {"steps": [{"id": "f", "type": "t", "policy": {"fallback": by_step["steps"][0]}}]}

    size = GraphSize.of(containing(inner, containing(inner), by_step, by_fallback))

    assert (size.steps, size.edges, size.depth) == (4 + 2 + (1 + 2) + (1 + 2) + (1 + 2), 4, 3)


def test_bytes_are_those_of_the_shortest_json() -> None:
    """The size is that of compact JSON in UTF-8, and equal for equal graphs."""
    assert canonical({"b": "é", "a": [1, 2]}) == '{"a":[1,2],"b":"é"}'.encode()
    assert GraphSize.of({"steps": [], "b": "é"}).size_bytes == len('{"b":"é","steps":[]}') + 1


@pytest.mark.parametrize("depth", [1, 2, 8])
def test_the_outermost_graph_is_the_first_level(depth: int) -> None:
    """Graphs next to each other do not add depth."""
    assert GraphSize.of(nested(depth)).depth == depth
    assert GraphSize.of(containing(nested(depth), nested(1))).depth == depth + 1


@pytest.mark.parametrize(
    "graph",
    [
        {},
        {"steps": None, "edges": 5},
        {"steps": [None, 5, "x", [], {}], "edges": [None]},
        {"steps": [{"data": {"graph": [1]}}, {"data": {"graph": {"steps": 3}}}]},
    ],
)
def test_whatever_is_no_graph_is_measured_all_the_same(graph: dict[str, Any]) -> None:
    """Validation reports the errors of an invalid graph."""
    assert GraphSize.of(graph).depth == 1


def test_a_name_counts_as_a_name() -> None:
    """The named graph's size is added when it is inserted."""
    assert GraphSize.of(containing(named("x"))).depth == 1
    assert GraphSize(10, 2, 1, 3).with_inside(GraphSize(5, 1, 1, 2), level=2) == GraphSize(
        15, 3, 2, 4
    )
    assert GraphSize(1, 1, 1, 5).with_inside(GraphSize(1, 1, 1, 1), level=1).depth == 5


def test_every_limit_that_is_passed_is_named_with_its_number() -> None:
    """A graph of exactly the maximum size passes."""
    limits = graph_limits(max_bytes=10, max_steps=2, max_edges=3, max_depth=4)

    assert GraphSize(10, 2, 3, 4).beyond(limits) == ()
    assert [problem.message for problem in GraphSize(11, 3, 4, 5).beyond(limits)] == [
        "A graph can have at most 10 bytes as JSON, including nested graphs (max_graph_bytes).",
        "A graph can have at most 2 steps, including nested graphs (max_graph_steps).",
        "A graph can have at most 3 edges, including nested graphs (max_graph_edges).",
        "A graph can nest at most 4 deep, including nested graphs (max_graph_depth).",
    ]
