"""The topology of a graph: its entries, its active and linked steps, and the edges between them.

Execution starts at the entries. A step that flow edges reach from an entry is active; only active
steps are executed. A step that is not active may still be linked: a link provides it to an active
step or to another linked step. All other steps are ignored.

An entry starts immediately, with the inputs of the execution. So a flow edge to an entry routes
nothing: it is in neither ``incoming`` nor ``outgoing``, delays nothing, and cannot start the entry
again. Only an entry that the graph lists explicitly can have such edges. Cycle detection includes
them, because a cycle through an entry is a mistake of the graph's author too.
"""

from collections.abc import Iterable, Mapping
from graphlib import CycleError, TopologicalSorter

from caseworker.core.graph.components import components, cycle_in, successors_of
from caseworker.core.graph.facts import StartStep
from caseworker.core.graph.graph import Channel, Edge, GraphError, GraphStep, StepGraph
from caseworker.core.graph.problems import path_text, quoted


class Topology:
    """The precomputed structure of a graph; built once and shared by all its executions."""

    graph: StepGraph
    steps: Mapping[str, GraphStep]
    """All steps of the graph, by ID."""
    entries: tuple[str, ...]
    """IDs of the steps to start with, in the order of the graph's steps."""
    active: tuple[str, ...]
    """IDs of the steps that can be executed, in the graph's order. A step is skipped if no path to
    it is taken."""
    linked: frozenset[str]
    """IDs of the inactive steps that links provide, directly or indirectly, to active steps."""
    incoming: Mapping[str, tuple[Edge, ...]]
    """Flow edges between active steps, grouped by target step, in the graph's order. Edges to an
    entry are omitted. A step without incoming edges has no key."""
    outgoing: Mapping[str, tuple[Edge, ...]]
    """The same edges as in ``incoming``, grouped by source step."""
    undecided: Mapping[str, int]
    """Number of ``incoming`` edges of each active step."""
    links_into: Mapping[str, tuple[Edge, ...]]
    """All link edges by target, including links between inactive steps."""
    start: Mapping[str, StartStep]
    """The ``StartStep`` order for each active step, by step ID; built once and reused."""

    def __init__(self, graph: StepGraph) -> None:
        """Compute the topology of ``graph``.

        Raises:
            GraphError: two steps share an id, an edge or an entry names a step that does not exist,
                or an edge has no channel.
        """
        self.graph = graph
        self.steps = _by_id(graph)
        flows, links = _by_channel(graph, self.steps)
        outgoing = _grouped((edge.source, edge) for edge in flows)
        self.links_into = _grouped((edge.target, edge) for edge in links)
        self.entries = _entries(graph, self.steps, flows, links)
        reached = _reached(self.entries, {s: [e.target for e in es] for s, es in outgoing.items()})
        self.active = tuple(step_id for step_id in self.steps if step_id in reached)
        sources = {t: [e.source for e in es] for t, es in self.links_into.items()}
        self.linked = frozenset(_reached(self.active, sources) - reached)
        entry_ids = frozenset(self.entries)
        routes = [edge for edge in flows if edge.source in reached and edge.target not in entry_ids]
        self.incoming = _grouped((edge.target, edge) for edge in routes)
        self.outgoing = _grouped((edge.source, edge) for edge in routes)
        self.undecided = {step_id: len(self.incoming.get(step_id, ())) for step_id in self.active}
        self.start = {step_id: StartStep(step_id) for step_id in self.active}

    def order(self) -> tuple[str, ...]:
        """Return the active steps in topological order of their flow edges.

        Raises:
            GraphError: flow edges form a cycle; the message names its steps.
        """
        taking_part = set(self.active)
        following = successors_of(
            edge
            for edge in self.graph.edges
            if edge.channel == Channel.FLOW and edge.source in taking_part
        )
        ordered: list[str] = []
        for component in components(self.active, following):
            cycle = cycle_in(component, following)
            if cycle is not None:
                raise GraphError(f"Flow edges form a cycle: {path_text(cycle)}.")
            ordered += component
        return tuple(ordered)

    def layers(self) -> tuple[tuple[str, ...], ...]:
        """Return the active and the linked steps in layers, each in the graph's order.

        A step is in the layer after its last predecessor. A linked step without linked predecessors
        is in the first layer.

        Raises:
            GraphError: flow edges, or links between linked steps, form a cycle.
        """
        sources: dict[str, set[str]] = {
            step_id: {edge.source for edge in self.incoming.get(step_id, ())}
            | {e.source for e in self.links_into.get(step_id, ()) if e.source in self.linked}
            for step_id in self.active
        }
        for step_id in self.linked:
            links = self.links_into.get(step_id, ())
            sources[step_id] = {edge.source for edge in links if edge.source in self.linked}
        place = {step_id: number for number, step_id in enumerate(self.steps)}
        sorter = TopologicalSorter(sources)
        try:
            sorter.prepare()
        except CycleError as error:
            raise GraphError(f"Edges form a cycle: {path_text(error.args[1])}.") from None
        step_ids_by_layer = []
        while sorter.is_active():
            layer = sorter.get_ready()
            sorter.done(*layer)
            step_ids_by_layer.append(tuple(sorted(layer, key=place.__getitem__)))
        return tuple(step_ids_by_layer)


def _by_id(graph: StepGraph) -> dict[str, GraphStep]:
    steps: dict[str, GraphStep] = {}
    for step in graph.steps:
        if step.id in steps:
            raise GraphError(f"Two steps have the same id {quoted(step.id)}.")
        steps[step.id] = step
    return steps


def _by_channel(graph: StepGraph, steps: Mapping[str, GraphStep]) -> tuple[list[Edge], list[Edge]]:
    """Return the flow edges and the link edges."""
    edges: dict[Channel, list[Edge]] = {channel: [] for channel in Channel}
    for edge in graph.edges:
        for end in (edge.source, edge.target):
            if end not in steps:
                raise GraphError(f"An edge refers to step {quoted(end)}, which does not exist.")
        if edge.channel not in edges:
            raise GraphError(
                f"The edge from {quoted(edge.source)} to {quoted(edge.target)} has the channel"
                f" {quoted(edge.channel)}; it must be flow or link."
            )
        edges[edge.channel].append(edge)
    return edges[Channel.FLOW], edges[Channel.LINK]


def _entries(
    graph: StepGraph, steps: Mapping[str, GraphStep], flows: list[Edge], links: list[Edge]
) -> tuple[str, ...]:
    if graph.entry is not None:
        for entry in graph.entry:
            if entry not in steps:
                raise GraphError(f"entry lists step {quoted(entry)}, which does not exist.")
        entry_ids = set(graph.entry)
        return tuple(step_id for step_id in steps if step_id in entry_ids)
    targets = {edge.target for edge in flows}
    only_link_sources = {edge.source for edge in links} - {edge.source for edge in flows}
    return tuple(
        step_id for step_id in steps if step_id not in targets and step_id not in only_link_sources
    )


def _grouped(edges: Iterable[tuple[str, Edge]]) -> dict[str, tuple[Edge, ...]]:
    groups: dict[str, list[Edge]] = {}
    for step_id, edge in edges:
        groups.setdefault(step_id, []).append(edge)
    return {step_id: tuple(group) for step_id, group in groups.items()}


def _reached(starts: Iterable[str], following: Mapping[str, Iterable[str]]) -> set[str]:
    reached = set(starts)
    pending = list(reached)
    while pending:
        fresh = {step_id for step_id in following.get(pending.pop(), ()) if step_id not in reached}
        reached |= fresh
        pending += fresh
    return reached
