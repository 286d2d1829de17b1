"""Validation of a graph: reports all its problems at once.

Structural problems (a duplicate ID, an edge to a missing step) are always errors. Problems that
only matter at execution (cycles, a persistent node that two parallel steps use) are errors inside
the subgraph that will be executed, and warnings outside it. A problem that another problem hides is
reported after the first one is fixed.

A channel other than flow or link is normally rejected earlier, when a graph is read from JSON. It
is checked here again for graphs that are built in Python.
"""

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TypeVar

from caseworker.core.graph.components import Successors, components, cycle_in, successors_of
from caseworker.core.graph.graph import Channel, Edge, GraphStep, StepGraph
from caseworker.core.graph.problems import (
    Handles,
    Names,
    Problem,
    Severity,
    Traits,
    listed,
    path_text,
    quoted,
)
from caseworker.core.graph.topology import Topology
from caseworker.platform.suggestions import suggestion

Group = TypeVar("Group", bound=Hashable)

__all__ = ["Handles", "Problem", "Severity", "Traits", "problems_of"]

_CHANNELS = frozenset(Channel)


def problems_of(
    graph: StepGraph, traits_of: Callable[[GraphStep], Traits | None], types: Collection[str] = ()
) -> tuple[Problem, ...]:
    """Return all problems of ``graph``; the graph can be executed if none of them is an error.

    ``traits_of`` returns None for a step of an unknown type; the message then lists ``types``, the
    registered types.
    """
    traits = [traits_of(step) for step in graph.steps]
    sound = sound_part(graph)
    at: dict[str, int] = {}
    for index, step in enumerate(graph.steps):
        at.setdefault(step.id, index)
    traits_by_id = {
        step_id: step_traits for step_id, index in at.items() if (step_traits := traits[index])
    }
    view = _GraphView(graph, sound, Topology(sound), traits_by_id, at)
    return (
        *shape_problems(graph, traits, types),
        *_execution_problems(view),
        *_entry_warnings(view),
        *_cycle_problems(view),
        *_sharing_problems(view),
        *_unreachable_steps(view),
    )


@dataclass(frozen=True, slots=True)
class _GraphView:
    """The graph under validation, with its valid part and the look-ups that the checks share."""

    graph: StepGraph
    sound: StepGraph
    """The graph without duplicate steps, invalid edges and unknown entries."""
    topology: Topology
    """The topology of ``sound``."""
    traits: Mapping[str, Traits]
    """Traits by step ID; steps of unknown type are absent."""
    at: Mapping[str, int]
    """The index of each step in the graph."""


def shape_problems(
    graph: StepGraph, traits: Sequence[Traits | None], types: Collection[str] = ()
) -> Iterator[Problem]:
    """Yield the problems in the steps, edges, entries and ``max_parallel`` of a graph.

    ``traits`` has one element per step, None for an unknown type; the messages then list ``types``.
    If several steps have the same ID, all of them are checked with the traits of the first.
    """
    traits_by_id: dict[str, Traits | None] = {}
    for step, its_traits in zip(graph.steps, traits, strict=True):
        traits_by_id.setdefault(step.id, its_traits)
    yield from _step_problems(graph, traits, types)
    yield from _repeated_edges(graph.edges)
    for index, edge in enumerate(graph.edges):
        yield from _end_problems(index, edge, traits_by_id)
    yield from _entry_problems(graph, traits_by_id)
    if graph.max_parallel < 1:
        yield Problem("max_parallel", "max_parallel must be at least 1.")


def sound_part(graph: StepGraph) -> StepGraph:
    """Return ``graph`` without the parts that ``Topology`` rejects.

    These are duplicate steps, edges with an unknown step or channel, and unknown entries.
    """
    steps: dict[str, GraphStep] = {}
    for step in graph.steps:
        steps.setdefault(step.id, step)
    edges = tuple(
        edge
        for edge in graph.edges
        if edge.source in steps and edge.target in steps and edge.channel in _CHANNELS
    )
    entry = None if graph.entry is None else tuple(one for one in graph.entry if one in steps)
    return replace(graph, steps=tuple(steps.values()), edges=edges, entry=entry)


def _repeated(values: Iterable[Hashable]) -> Iterator[tuple[int, int]]:
    """Yield the index of each repeated value and the index of its first use; ignore None."""
    first: dict[Hashable, int] = {}
    for index, value in enumerate(values):
        if value is not None and (earlier := first.setdefault(value, index)) != index:
            yield index, earlier


def _step_problems(
    graph: StepGraph, traits: Sequence[Traits | None], types: Collection[str]
) -> Iterator[Problem]:
    there_are = ", ".join(sorted(types)) or "(no types are registered)"
    if not graph.steps:
        yield Problem("steps", "The graph has no steps. Add at least one.")
    first_uses = dict(_repeated(step.id for step in graph.steps))
    for index, step in enumerate(graph.steps):
        if index in first_uses:
            yield Problem(
                f"steps.{index}.id",
                f"The id {quoted(step.id)} is already used by steps.{first_uses[index]}."
                " Give each step a unique id.",
            )
        if traits[index] is None:
            yield Problem(
                f"steps.{index}.type",
                f"Step {quoted(step.id)} has the unknown type {quoted(step.type)}."
                f" Use one of these: {there_are}.{suggestion(step.type, types)}",
            )


def _repeated_edges(edges: Sequence[Edge]) -> Iterator[Problem]:
    for index, earlier in _repeated(edge.id for edge in edges):
        yield Problem(
            f"edges.{index}.id",
            f"The id {quoted(edges[index].id)} is already used by edges.{earlier}."
            " Give each edge a unique id, or no id.",
        )
    for index, earlier in _repeated(replace(edge, id=None) for edge in edges):
        yield Problem(
            f"edges.{index}",
            f"The edge from {quoted(edges[index].source)} to {quoted(edges[index].target)} is a"
            f" duplicate of edges.{earlier}. Remove one of them.",
        )


def _end_problems(
    index: int, edge: Edge, traits_by_id: Mapping[str, Traits | None]
) -> Iterator[Problem]:
    """Yield the problems of an edge's channel and of its two ends."""
    for end, step_id in (("source", edge.source), ("target", edge.target)):
        if step_id not in traits_by_id:
            yield Problem(f"edges.{index}.{end}", _no_step(step_id, edge))
    if edge.channel not in _CHANNELS:
        yield Problem(
            f"edges.{index}.data.channel",
            f"The channel must be flow or link, not {quoted(edge.channel)}.",
        )
        return
    if (source := traits_by_id.get(edge.source)) is not None:
        names = source.handles.outputs(edge.channel)
        yield from _handle_problems(index, edge, "source", names)
    if (target := traits_by_id.get(edge.target)) is not None:
        names = target.handles.inputs(edge.channel)
        yield from _handle_problems(index, edge, "target", names)
        other = Channel.LINK if edge.channel == Channel.FLOW else Channel.FLOW
        if names is None and edge.target_handle in (target.handles.inputs(other) or ()):
            yield Problem(
                f"edges.{index}.data.channel",
                f"Input {quoted(edge.target_handle)} of step {quoted(edge.target)} takes only edges"
                f" on channel {other}. Use that channel or another handle.",
            )


def _handle_problems(index: int, edge: Edge, end: str, names: Names) -> Iterator[Problem]:
    if end == "source":
        step_id, handle, kind = edge.source, edge.source_handle, "output"
    else:
        step_id, handle, kind = edge.target, edge.target_handle, "input"
    if names is None or handle in names:
        return
    if names:
        place = f"edges.{index}.{end}_handle"
        mend = f"It has {listed(names)}.{suggestion(handle, names)}"
        lacks = f"{kind} {quoted(handle)}"
    else:
        place, lacks = f"edges.{index}.data.channel", kind
        mend = "Use the other channel or another step."
    yield Problem(place, f"Step {quoted(step_id)} has no {lacks} on channel {edge.channel}. {mend}")


def _entry_problems(
    graph: StepGraph, traits_by_id: Mapping[str, Traits | None]
) -> Iterator[Problem]:
    if graph.entry is None:
        return
    if not graph.entry:
        yield Problem(
            "entry",
            "entry is empty, so nothing would be executed."
            " List the steps to start with, or omit entry.",
        )
    first_uses = dict(_repeated(graph.entry))
    for index, step_id in enumerate(graph.entry):
        if index in first_uses:
            problem = f"Step {quoted(step_id)} is already listed as entry.{first_uses[index]}."
            yield Problem(f"entry.{index}", f"{problem} List it only once.")
        elif step_id not in traits_by_id:
            yield Problem(f"entry.{index}", _no_step(step_id))


def _no_step(step_id: str, edge: Edge | None = None) -> str:
    ends = "" if edge is None else f" (edge {quoted(edge.source)} to {quoted(edge.target)})"
    return f"There is no step {quoted(step_id)}{ends}. Correct the id, or add the step."


def _execution_problems(view: _GraphView) -> Iterator[Problem]:
    """Yield a problem if no step would be executed, and one per active step that cannot be."""
    graph, active = view.graph, view.topology.active
    if graph.steps and graph.entry is None and not active:
        yield Problem(
            "steps",
            "No step would be executed: every step waits for another step or is only linked."
            " Add a step without incoming flow edges, or list the first steps in entry.",
        )
    entry_at = {step_id: index for index, step_id in enumerate(graph.entry or ())}
    for step_id in active:
        if step_id not in view.traits or view.traits[step_id].executes:
            continue
        is_entry = step_id in entry_at
        yield Problem(
            f"entry.{entry_at[step_id]}" if is_entry else f"steps.{view.at[step_id]}.type",
            f"Step {quoted(step_id)} cannot be executed; it can only be linked."
            " Connect it only by edges on channel link, to the steps that need it.",
        )


def _entry_warnings(view: _GraphView) -> Iterator[Problem]:
    """Warn about flow edges from an active step to an entry, which does not wait for them."""
    entries, active = set(view.topology.entries), set(view.topology.active)
    for index, edge in enumerate(view.graph.edges):
        if edge.channel == Channel.FLOW and edge.target in entries and edge.source in active:
            yield Problem(
                f"edges.{index}",
                f"This edge has no effect: {quoted(edge.target)} is an entry, so it starts"
                f" without waiting for {quoted(edge.source)}. Remove the edge, or take the step out"
                " of entry.",
                Severity.WARNING,
            )


def _cycle_problems(view: _GraphView) -> Iterator[Problem]:
    topology = view.topology
    active = frozenset(topology.active)
    for channel, inside in (
        (Channel.FLOW, active),
        (Channel.LINK, active | topology.linked),
    ):
        for place, cycle in _cycles(view, channel):
            yield Problem(
                place,
                f"The edges on channel {channel} form a cycle: {path_text(cycle)}."
                " Remove one of them.",
                Severity.ERROR if cycle[0] in inside else Severity.WARNING,
            )


def _cycles(view: _GraphView, channel: Channel) -> list[tuple[str, tuple[str, ...]]]:
    """Return one cycle per component, with the location of the edge that closes it.

    A flow component is active either as a whole or not at all, because every successor of an active
    step is active. The same holds for links: every source of a linked or active step takes part.
    """
    closing: dict[tuple[str, str], str] = {}
    for index, edge in enumerate(view.graph.edges):
        if edge.channel == channel:
            closing.setdefault((edge.source, edge.target), f"edges.{index}")
    following = successors_of(edge for edge in view.sound.edges if edge.channel == channel)
    parts = components(tuple(view.topology.steps), following)
    cycles = (cycle for part in parts if (cycle := cycle_in(part, following)) is not None)
    ordered = sorted(cycles, key=lambda cycle: view.at[cycle[0]])
    return [(closing[cycle[-2], cycle[-1]], cycle) for cycle in ordered]


def _sharing_problems(view: _GraphView) -> Iterator[Problem]:
    if view.graph.max_parallel <= 1:
        return
    active, entries = frozenset(view.topology.active), frozenset(view.topology.entries)
    users: dict[tuple[bool, Hashable], list[str]] = {}
    for step_id in view.topology.steps:
        for node in view.traits[step_id].holds if step_id in view.traits else ():
            users.setdefault((step_id in active, node), []).append(step_id)
    waiting = successors_of(
        edge
        for edge in view.sound.edges
        if edge.channel == Channel.FLOW and edge.target not in entries
    )
    pairs = [
        (view.at[later], quoted(earlier), quoted(later), quoted(node), inside)
        for earlier, later, (inside, node) in parallel_pairs(
            users, tuple(view.topology.steps), waiting
        )
    ]
    for index, earlier, later, node, inside in sorted(pairs):
        yield Problem(
            f"steps.{index}",
            f"Steps {earlier} and {later} both use the persistent node {node} and can run in"
            " parallel. Add a dependency between them, or set max_parallel to 1.",
            Severity.ERROR if inside else Severity.WARNING,
        )


def _unreachable_steps(view: _GraphView) -> Iterator[Problem]:
    """Warn about steps that are neither active nor linked.

    Yields nothing while an entry is invalid, because that would cause most of these warnings.
    """
    topology, entry = view.topology, view.graph.entry
    if not topology.active or entry != view.sound.entry:
        return
    taking_part = topology.linked.union(topology.active)
    for step_id in topology.steps:
        if step_id not in taking_part:
            yield Problem(
                f"steps.{view.at[step_id]}",
                f"Step {quoted(step_id)} is never executed: no path leads to it from an entry.",
                Severity.WARNING,
            )


def parallel_pairs(
    users: Mapping[Group, Sequence[str]], steps: Sequence[str], successors: Successors
) -> list[tuple[str, str, Group]]:
    """Return the pairs of steps that use the same node and may run in parallel.

    Each element holds the first step, the second step and the node. ``users`` maps a node to the
    steps that use it. The steps of a node are compared with their neighbours in topological order
    only. So adding one edge per pair, from its first step to its second, fixes the graph without
    causing a cycle.
    """
    shared = {node: group for node, group in users.items() if len(group) > 1}
    sharing = dict.fromkeys(step for group in shared.values() for step in group)
    bits = {step: 1 << index for index, step in enumerate(sharing)}
    parts = components(steps, successors)
    part_of = {step: index for index, part in enumerate(parts) for step in part}
    before = _leading_to(parts, part_of, successors, bits)
    return [
        (earlier, later, node)
        for node, group in shared.items()
        for earlier, later in pairwise(sorted(group, key=part_of.__getitem__))
        if not before[part_of[later]] & bits[earlier]
    ]


def _leading_to(
    parts: Sequence[Sequence[str]],
    part_of: Mapping[str, int],
    successors: Successors,
    bits: Mapping[str, int],
) -> list[int]:
    """Return, by component, the bits of all users before it; a cycle includes its own users."""
    before = [0] * len(parts)
    for index, part in enumerate(parts):  # topological order: all predecessors are done
        leading = before[index]
        for step in part:
            leading |= bits.get(step, 0)
        for step in part:
            for target in successors.get(step, ()):
                before[part_of[target]] |= leading
    return before
