"""The way through a graph."""

from itertools import pairwise

import pytest

from app.kernel.graph import Channel, Edge, Graph, GraphError
from app.kernel.topology import Topology
from tests.unit.kernel.drawing import fan, flow, graph, link, row


def test_a_graph_begins_at_the_steps_that_no_flow_edge_leads_to() -> None:
    """In the order in which the graph lists them."""
    topology = Topology(graph("CABD", flow("A", "B"), flow("C", "D")))

    assert topology.entries == ("C", "A")
    assert topology.active == ("C", "A", "B", "D")
    assert topology.linked == frozenset()


@pytest.mark.req("004/channel", "004/pipeline")
def test_a_step_that_is_only_the_source_of_a_link_is_no_entry() -> None:
    """It is materialised for the step that needs it; what also takes part in flow is an entry."""
    topology = Topology(
        graph("ABLM", flow("A", "B"), link("L", "A"), link("M", "B"), flow("M", "B"))
    )

    assert topology.entries == ("A", "M")
    assert topology.linked == {"L"}


def test_a_step_without_any_edge_is_an_entry() -> None:
    """And so is one that only needs a link."""
    assert Topology(graph("ABL", link("L", "B"))).entries == ("A", "B")


@pytest.mark.req("004/subgraph")
def test_only_what_flow_reaches_from_the_entries_is_active() -> None:
    """A, C and the edge from C to B take no part."""
    edge = flow("B", "D")
    topology = Topology(graph("ABCD", flow("A", "B"), edge, flow("C", "B"), entry="B"))

    assert topology.entries == ("B",)
    assert topology.active == ("B", "D")
    assert topology.incoming == {"D": (edge,)}
    assert topology.outgoing == {"B": (edge,)}
    assert topology.undecided == {"B": 0, "D": 1}


@pytest.mark.req("004/subgraph")
def test_an_edge_from_a_step_that_is_not_active_holds_nothing_back() -> None:
    """D joins an active and an inactive branch: it waits for the active one alone."""
    topology = Topology(graph("BCD", flow("B", "D"), flow("C", "D"), entry="B"))

    assert topology.undecided == {"B": 0, "D": 1}
    assert [edge.source for edge in topology.incoming["D"]] == ["B"]


@pytest.mark.req("004/subgraph")
def test_links_materialise_through_other_links() -> None:
    """K is needed by L, which is needed by A; N is needed by M alone, which nobody needs."""
    topology = Topology(graph("AKLMN", link("L", "A"), link("K", "L"), link("N", "M"), entry="A"))

    assert topology.active == ("A",)
    assert topology.linked == {"K", "L"}
    assert {target: [e.source for e in es] for target, es in topology.links_into.items()} == {
        "A": ["L"],
        "L": ["K"],
        "M": ["N"],
    }


def test_a_step_in_the_flow_that_is_linked_too_is_active_and_not_linked() -> None:
    """It is executed, and may be materialised as well."""
    topology = Topology(graph("AB", flow("A", "B"), link("A", "B")))

    assert topology.active == ("A", "B")
    assert topology.linked == frozenset()


def test_edges_keep_the_order_in_which_the_graph_lists_them() -> None:
    """Two edges between the same steps on other handles both count."""
    first, second, third = flow("B", "C"), flow("A", "C", "x"), flow("A", "C", "y")
    topology = Topology(graph("ABC", first, second, third))

    assert topology.incoming == {"C": (first, second, third)}
    assert topology.outgoing == {"B": (first,), "A": (second, third)}
    assert topology.undecided["C"] == 3


def test_an_edge_that_leads_to_an_entry_routes_nothing() -> None:
    """B starts at once, so nothing waits for A on its behalf."""
    topology = Topology(graph("ABC", flow("A", "B"), flow("B", "C"), entry="BA"))

    assert topology.entries == ("A", "B")
    assert topology.undecided == {"A": 0, "B": 0, "C": 1}
    assert "B" not in topology.incoming
    assert "A" not in topology.outgoing


def test_an_empty_entry_activates_nothing() -> None:
    """It is not the same as none."""
    assert Topology(graph("AB", entry="")).active == ()


def test_the_order_puts_each_step_after_all_that_lead_to_it() -> None:
    """Independent ones stay in the order of the edges."""
    diamond = graph("DCBA", flow("A", "B"), flow("A", "C"), flow("B", "D"), flow("C", "D"))

    assert Topology(diamond).order() == ("A", "B", "C", "D")


@pytest.mark.parametrize("entry", ["A", "B", "BC"])
def test_a_circle_has_no_order(entry: str) -> None:
    """Also where an entry breaks it."""
    circle = graph("ABC", flow("A", "B"), flow("B", "C"), flow("C", "B"), entry=entry)

    with pytest.raises(GraphError, match="B -> C -> B"):
        Topology(circle).order()


@pytest.mark.req("004/subgraph")
def test_a_circle_that_is_not_active_does_not_matter_to_the_order() -> None:
    """Nor does one of links."""
    topology = Topology(
        graph("ABCLM", flow("B", "C"), flow("C", "B"), link("L", "M"), link("M", "L"))
    )

    assert topology.order() == ("A",)


@pytest.mark.parametrize(
    ("broken", "said"),
    [
        (graph("ABA"), "same id 'A'"),
        (graph("A", flow("A", "B")), "'B'"),
        (graph("B", flow("A", "B")), "'A'"),
        (graph("B", link("A", "B")), "'A'"),
        (graph("A", entry="AZ"), "'Z'"),
    ],
)
def test_a_graph_with_loose_ends_is_refused(broken: Graph, said: str) -> None:
    """Before anything is made of it."""
    with pytest.raises(GraphError, match=said):
        Topology(broken)


def test_one_step_that_is_listed_twice_is_refused() -> None:
    """Even if it is the very same object."""
    once = graph("A").steps

    with pytest.raises(GraphError, match="'A'"):
        Topology(Graph(id="g", steps=once + once))


@pytest.mark.req("004/channel")
@pytest.mark.parametrize("channel", [None, "", "values"])
def test_an_edge_on_no_channel_is_refused(channel: str | None) -> None:
    """It is not taken for flow because the field is empty."""
    edge = Edge(source="A", target="B", channel=channel)  # type: ignore[arg-type]

    with pytest.raises(GraphError, match="flow or link"):
        Topology(graph("AB", edge))


def test_every_channel_has_a_place() -> None:
    """What is neither flow nor link cannot be added without thinking of it here."""
    assert set(Channel) == {Channel.FLOW, Channel.LINK}


def test_a_deep_graph_needs_no_deep_stack() -> None:
    """10,000 steps in a row, of which the last is linked by as many."""
    deep = row(10_000)

    assert Topology(deep).order() == tuple(step.id for step in deep.steps)
    names = [step.id for step in deep.steps]
    links = (link(one, following) for one, following in pairwise(names))
    assert len(Topology(graph(names, *links, entry=["9999"])).linked) == 9_999


@pytest.mark.parametrize("width", [1_000, pytest.param(10_000, marks=pytest.mark.proof)])
def test_a_wide_graph_is_ordered(width: int) -> None:
    """All steps side by side lie between the first and the last one."""
    topology = Topology(fan(width))

    assert topology.undecided["last"] == width
    assert len(topology.outgoing["first"]) == width
    assert topology.order()[:: width + 1] == ("first", "last")
