"""Problems of random graphs, checked against the contract."""

import re
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caseworker.core.graph.graph import Channel, Edge, StepGraph
from caseworker.core.graph.validation import Problem, Severity, Traits, problems_of
from tests.property import graph_oracle as oracle
from tests.property.random_graphs import MOST_STEPS, graphs

Holds = dict[str, frozenset[str]]

HOLDS = st.fixed_dictionaries(
    {f"s{number}": st.frozensets(st.sampled_from("mn")) for number in range(MOST_STEPS)}
)


def problems(graph: StepGraph, holds: Holds) -> tuple[Problem, ...]:
    return problems_of(graph, lambda step: Traits(holds=holds[step.id]))


def circles_told(graph: StepGraph, channel: Channel) -> list[tuple[frozenset[str], Severity]]:
    """Return the reported cycles, each as the cycle that its edge belongs to."""
    found = []
    by_step = {step: circle for circle in oracle.circles(graph, channel) for step in circle}
    for problem in problems_of(graph, lambda _: Traits()):
        said = re.fullmatch(
            rf"The edges on channel {channel} .*: (.*)\. Remove .*", problem.message
        )
        if said is None:
            continue
        edge = graph.edges[int(problem.place.removeprefix("edges."))]
        path = said[1].split(" -> ")
        assert (edge.source, edge.target, edge.channel) == (path[-2], path[-1], channel)
        edges = {(edge.source, edge.target) for edge in oracle.on(graph, channel)}
        assert all("more" in step or step in by_step for step in path)
        assert "more" in said[1] or set(pairwise(path)) <= edges
        found.append((by_step[edge.source], problem.severity))
    return found


@pytest.mark.req("004/subgraph")
@given(graph=graphs(circles=True))
def test_exactly_the_circles_of_a_graph_are_told_each_once(graph: StepGraph) -> None:
    """A cycle is an error if it would be executed or materialised."""
    running = oracle.active(graph)
    for channel, inside in (
        (Channel.FLOW, running),
        (Channel.LINK, running | oracle.linked(graph)),
    ):
        told = circles_told(graph, channel)

        assert len(told) == len(set(told))
        assert set(told) == {
            (circle, Severity.ERROR if circle & inside else Severity.WARNING)
            for circle in oracle.circles(graph, channel)
        }


def sharing_told(graph: StepGraph, holds: Holds) -> list[tuple[tuple[str, str], str, Severity]]:
    pattern = re.compile(r"Steps '(\w+)' and '(\w+)' both use the persistent node '(\w)' .*")
    return [
        ((said[1], said[2]), said[3], problem.severity)
        for problem in problems(graph, holds)
        if (said := pattern.fullmatch(problem.message))
    ]


@pytest.mark.req("000/P4")
@given(graph=graphs(circles=False) | graphs(circles=True), holds=HOLDS)
def test_only_steps_that_can_run_in_parallel_are_told_to_share_a_node(
    graph: StepGraph, holds: Holds
) -> None:
    """Every node that such steps share is reported, inside and outside the active subgraph."""
    running = oracle.active(graph)
    expected = oracle.parallel_users(graph, holds)

    told = sharing_told(graph, holds)

    assert {(frozenset(pair), node) for pair, node, _ in told} <= expected
    assert {(node, severity) for _, node, severity in told} == {
        (node, Severity.ERROR if pair <= running else Severity.WARNING) for pair, node in expected
    }


@pytest.mark.req("000/P4")
@given(graph=graphs(circles=False) | graphs(circles=True), holds=HOLDS)
def test_an_edge_for_every_pair_that_is_an_error_mends_the_graph(
    graph: StepGraph, holds: Holds
) -> None:
    """The added edges create no new cycle."""
    graph = replace(graph, entry=None)  # a named entry would not wait for the edge
    added = dict.fromkeys(
        Edge(source=earlier, target=later, target_handle="after", channel=Channel.FLOW)
        for (earlier, later), _, severity in sharing_told(graph, holds)
        if severity is Severity.ERROR
    )
    mended = replace(graph, edges=(*graph.edges, *added))

    assert all(severity is Severity.WARNING for _, _, severity in sharing_told(mended, holds))
    assert oracle.circles(mended, Channel.FLOW) == oracle.circles(graph, Channel.FLOW)
    assert oracle.active(mended) == oracle.active(graph)


@given(graph=graphs(circles=True))
def test_exactly_the_steps_that_take_no_part_are_told_so(graph: StepGraph) -> None:
    """Exactly the steps that are neither active nor linked are reported as unused."""
    told = [
        problem.place
        for problem in problems_of(graph, lambda _: Traits())
        if "never executed" in problem.message
    ]

    apart = {s.id for s in graph.steps} - oracle.active(graph) - oracle.linked(graph)
    nothing_begins = not oracle.active(graph)
    assert told == [
        f"steps.{index}"
        for index, step in enumerate(graph.steps)
        if step.id in apart and not nothing_begins
    ]
