"""Active steps, links and execution order of a graph."""

from itertools import pairwise

import pytest

from caseworker.core.graph.graph import Channel, Edge, GraphError, StepGraph
from caseworker.core.graph.topology import Topology
from tests.unit.core.graph.drawing import fan, flow, graph, link, row


@pytest.mark.req("004/subgraph")
def test_links_materialise_through_other_links() -> None:
    """Links are followed through other links, starting from the active steps only."""
    topology = Topology(graph("AKLMN", link("L", "A"), link("K", "L"), link("N", "M"), entry="A"))

    assert topology.active == ("A",)
    assert topology.linked == {"K", "L"}
    assert {target: [e.source for e in es] for target, es in topology.links_into.items()} == {
        "A": ["L"],
        "L": ["K"],
        "M": ["N"],
    }
    assert topology.layers() == (("K",), ("L",), ("A",))


def test_an_empty_entry_activates_nothing() -> None:
    """An empty entry list activates no step, unlike a missing one."""
    assert Topology(graph("AB", entry="")).active == ()


def test_the_order_puts_each_step_after_all_that_lead_to_it() -> None:
    """The order is topological; independent steps keep the order of the edges."""
    diamond = graph("DCBA", flow("A", "B"), flow("A", "C"), flow("B", "D"), flow("C", "D"))

    assert Topology(diamond).order() == ("A", "B", "C", "D")


@pytest.mark.parametrize("entry", ["A", "B", "BC"])
def test_a_circle_has_no_order(entry: str) -> None:
    """A cycle is rejected with its path, even if an entry step breaks it."""
    circle = graph("ABC", flow("A", "B"), flow("B", "C"), flow("C", "B"), entry=entry)

    with pytest.raises(GraphError, match="B -> C -> B"):
        Topology(circle).order()


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (graph("ABA"), "same id 'A'"),
        (StepGraph(id="g", steps=graph("A").steps * 2), "same id 'A'"),
        (graph("A", flow("A", "B")), "'B'"),
        (graph("B", flow("A", "B")), "'A'"),
        (graph("B", link("A", "B")), "'A'"),
        (graph("A", entry="AZ"), "'Z'"),
    ],
)
def test_a_graph_with_loose_ends_is_refused(broken: StepGraph, said: str) -> None:
    """A topology rejects duplicate step IDs and edges or entries that name no step."""
    with pytest.raises(GraphError, match=said):
        Topology(broken)


@pytest.mark.req("004/channel")
@pytest.mark.parametrize("channel", [None, "", "values"])
def test_an_edge_on_no_channel_is_refused(channel: str | None) -> None:
    """An edge without a valid channel is rejected, not treated as flow."""
    edge = Edge(source="A", target="B", channel=channel)  # type: ignore[arg-type]

    with pytest.raises(GraphError, match="flow or link"):
        Topology(graph("AB", edge))


def test_every_channel_has_a_place() -> None:
    """There are exactly two channels; a new one requires changes in the topology."""
    assert set(Channel) == {Channel.FLOW, Channel.LINK}


def test_a_deep_graph_needs_no_deep_stack() -> None:
    """A chain of 10,000 steps or links is processed without recursion."""
    deep = row(10_000)

    assert Topology(deep).order() == tuple(step.id for step in deep.steps)
    names = [step.id for step in deep.steps]
    links = (link(one, following) for one, following in pairwise(names))
    assert len(Topology(graph(names, *links, entry=["9999"])).linked) == 9_999


@pytest.mark.parametrize("width", [1_000, pytest.param(10_000, marks=pytest.mark.proof)])
def test_a_wide_graph_is_ordered(width: int) -> None:
    """A graph with thousands of parallel steps is ordered between its first and last step."""
    topology = Topology(fan(width))

    assert topology.undecided["last"] == width
    assert len(topology.outgoing["first"]) == width
    assert topology.order()[:: width + 1] == ("first", "last")
