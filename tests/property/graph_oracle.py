"""The contract for graphs, computed in the simplest way."""

from collections.abc import Collection, Hashable, Iterable, Mapping
from itertools import combinations

from caseworker.core.graph.graph import Channel, Edge, StepGraph

Reach = Mapping[str, Collection[str]]


def on(graph: StepGraph, channel: Channel) -> list[Edge]:
    """Return the edges on one channel."""
    return [edge for edge in graph.edges if edge.channel is channel]


def reach(graph: StepGraph, edges: Iterable[Edge]) -> dict[str, set[str]]:
    """Return, by step, all steps that can be reached by one or more of ``edges``."""
    reached: dict[str, set[str]] = {step.id: set() for step in graph.steps}
    edges, grown = list(edges), True
    while grown:
        grown = False
        for edge in edges:
            further = reached[edge.target] | {edge.target}
            if not further <= reached[edge.source]:
                reached[edge.source] |= further
                grown = True
    return reached


def entries(graph: StepGraph) -> set[str]:
    """Return the entry steps of the graph."""
    if graph.entry is not None:
        return set(graph.entry)
    flows, links = on(graph, Channel.FLOW), on(graph, Channel.LINK)
    return {
        step.id
        for step in graph.steps
        if all(edge.target != step.id for edge in flows)
        and (
            any(edge.source == step.id for edge in flows)
            or all(edge.source != step.id for edge in links)
        )
    }


def active(graph: StepGraph) -> set[str]:
    """Return the entries and the steps that flow edges reach from them."""
    reached = reach(graph, on(graph, Channel.FLOW))
    return set.union(entries(graph), *(reached[entry] for entry in entries(graph)))


def linked(graph: StepGraph) -> set[str]:
    """Return the steps that active steps materialise through links."""
    reached, running = reach(graph, on(graph, Channel.LINK)), active(graph)
    return {
        step.id for step in graph.steps if step.id not in running and reached[step.id] & running
    }


def routes(graph: StepGraph) -> list[Edge]:
    """Return the edges that pass values: between active steps, and not to an entry."""
    running, begun = active(graph), entries(graph)
    return [
        edge
        for edge in on(graph, Channel.FLOW)
        if edge.source in running and edge.target in running and edge.target not in begun
    ]


def started(graph: StepGraph, produced: Mapping[str, Collection[str]]) -> set[str]:
    """Return the entries and the steps that a value reaches."""
    found, grown = entries(graph), True
    while grown:
        fresh = {
            edge.target
            for edge in routes(graph)
            if edge.source in found and edge.source_handle in produced[edge.source]
        }
        grown = not fresh <= found
        found |= fresh
    return found


def circles(graph: StepGraph, channel: Channel) -> set[frozenset[str]]:
    """Return the cycles on ``channel`` as sets of steps."""
    reached = reach(graph, on(graph, channel))
    return {
        frozenset(other for other in reached[step] if step in reached[other])
        for step in reached
        if step in reached[step]
    }


def parallel_users(
    graph: StepGraph, holds: Mapping[str, Collection[Hashable]]
) -> set[tuple[frozenset[str], Hashable]]:
    """Return all pairs of steps that share a node although neither waits for the other.

    Either both steps are active, or neither is.
    """
    if graph.max_parallel == 1:
        return set()
    running, begun = active(graph), entries(graph)
    waits = reach(graph, [edge for edge in on(graph, Channel.FLOW) if edge.target not in begun])
    return {
        (frozenset((one, other)), node)
        for one, other in combinations((step.id for step in graph.steps), 2)
        for node in holds[one]
        if node in holds[other]
        and (one in running) == (other in running)
        and one not in waits[other]
        and other not in waits[one]
    }
