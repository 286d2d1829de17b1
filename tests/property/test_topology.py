"""The order of random graphs, checked against the contract."""

import pytest
from hypothesis import given

from caseworker.core.graph.graph import Channel, GraphError, StepGraph
from caseworker.core.graph.topology import Topology
from tests.property import graph_oracle as oracle
from tests.property.random_graphs import graphs


@pytest.mark.req("004/subgraph", "004/channel")
@given(graph=graphs(circles=True))
def test_the_active_subgraph_is_what_its_definition_says(graph: StepGraph) -> None:
    """The topology's active steps, linked steps and value edges match the definition."""
    topology = Topology(graph)
    listed = [step.id for step in graph.steps]
    routes = oracle.routes(graph)

    assert list(topology.entries) == [s for s in listed if s in oracle.entries(graph)]
    assert list(topology.active) == [s for s in listed if s in oracle.active(graph)]
    assert topology.linked == oracle.linked(graph)
    assert topology.undecided == {
        step_id: sum(edge.target == step_id for edge in routes) for step_id in topology.active
    }
    assert topology.incoming == {
        step_id: tuple(edge for edge in routes if edge.target == step_id)
        for step_id in {edge.target for edge in routes}
    }
    assert topology.outgoing == {
        step_id: tuple(edge for edge in routes if edge.source == step_id)
        for step_id in {edge.source for edge in routes}
    }
    links = oracle.on(graph, Channel.LINK)
    assert sorted(map(str, (e for es in topology.links_into.values() for e in es))) == sorted(
        map(str, links)
    )


@given(graph=graphs(circles=False))
def test_the_order_puts_every_source_before_its_targets(graph: StepGraph) -> None:
    """Each active step occurs once in the order."""
    topology = Topology(graph)

    order = topology.order()

    assert sorted(order) == sorted(topology.active)
    assert all(
        order.index(edge.source) < order.index(edge.target)
        for edge in oracle.on(graph, Channel.FLOW)
        if edge.source in topology.active
    )


@given(graph=graphs(circles=True))
def test_there_is_no_order_exactly_if_an_active_step_leads_to_itself(graph: StepGraph) -> None:
    """An order exists unless an active step leads to itself; other cycles do not matter."""
    topology = Topology(graph)
    circles = oracle.circles(graph, Channel.FLOW)

    if any(circle & oracle.active(graph) for circle in circles):
        with pytest.raises(GraphError, match="cycle"):
            topology.order()
    else:
        assert set(topology.order()) == set(topology.active)


@given(graph=graphs(circles=False))
def test_a_step_stands_one_layer_behind_the_last_that_leads_to_it(graph: StepGraph) -> None:
    """Each active or linked step is in one layer, in the order of the graph's steps."""
    topology = Topology(graph)
    layers = topology.layers()
    depth = {step_id: at for at, layer in enumerate(layers) for step_id in layer}
    listed = [step.id for step in graph.steps]

    assert sorted(step_id for layer in layers for step_id in layer) == sorted(
        {*topology.active, *topology.linked}
    )
    assert all(list(layer) == sorted(layer, key=listed.index) for layer in layers)
    for step_id in depth:
        sources = [edge.source for edge in topology.incoming.get(step_id, ())]
        sources += [
            edge.source
            for edge in topology.links_into.get(step_id, ())
            if edge.source in topology.linked
        ]
        assert depth[step_id] == max((depth[source] + 1 for source in sources), default=0)
