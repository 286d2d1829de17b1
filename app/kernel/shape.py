"""What is wrong with the parts of a graph, each looked at for itself."""

from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from app.kernel.graph import Channel, Edge, Graph, Step
from app.kernel.problems import Names, Problem, Traits, listed, quoted

_CHANNELS = frozenset(Channel)


def shape_problems(
    graph: Graph, traits: Sequence[Traits | None], types: Collection[str] = ()
) -> Iterator[Problem]:
    """Yield what is wrong with steps, edges, entry and limit; ``traits`` are those of the steps.

    Steps of one id have the traits of the first of them. ``types`` are named where a step uses one
    that does not exist.
    """
    known: dict[str, Traits | None] = {}
    for step, its_traits in zip(graph.steps, traits, strict=True):
        known.setdefault(step.id, its_traits)
    yield from _step_problems(graph, traits, types)
    yield from _repeated_edges(graph.edges)
    for index, edge in enumerate(graph.edges):
        yield from _end_problems(index, edge, known)
    yield from _entry_problems(graph, known)
    if graph.max_parallel < 1:
        yield Problem("max_parallel", "max_parallel must be at least 1.")


def sound_part(graph: Graph) -> Graph:
    """Return ``graph`` without what no ``Topology`` can be made of."""
    steps: dict[str, Step] = {}
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
    """Yield where a value stands again, and where it stood first; None is no value."""
    first: dict[Hashable, int] = {}
    for index, value in enumerate(values):
        if value is not None and (earlier := first.setdefault(value, index)) != index:
            yield index, earlier


def _step_problems(
    graph: Graph, traits: Sequence[Traits | None], types: Collection[str]
) -> Iterator[Problem]:
    there_are = ", ".join(sorted(types)) or "those that are registered"
    if not graph.steps:
        yield Problem("steps", "The graph has no steps. Add at least one.")
    taken = dict(_repeated(step.id for step in graph.steps))
    for index, step in enumerate(graph.steps):
        if index in taken:
            yield Problem(
                f"steps.{index}.id",
                f"The id {quoted(step.id)} is taken by steps.{taken[index]}."
                " Give every step an id of its own.",
            )
        if traits[index] is None:
            yield Problem(
                f"steps.{index}.type",
                f"Step {quoted(step.id)} has the unknown type {quoted(step.type)}."
                f" Use one of these: {there_are}.",
            )


def _repeated_edges(edges: Sequence[Edge]) -> Iterator[Problem]:
    for index, earlier in _repeated(edge.id for edge in edges):
        yield Problem(
            f"edges.{index}.id",
            f"The id {quoted(edges[index].id)} is taken by edges.{earlier}."
            " Give every edge an id of its own, or none.",
        )
    for index, earlier in _repeated(replace(edge, id=None) for edge in edges):
        yield Problem(
            f"edges.{index}",
            f"This edge from {quoted(edges[index].source)} to {quoted(edges[index].target)} is the"
            f" same as edges.{earlier}. Remove one of them.",
        )


def _end_problems(index: int, edge: Edge, known: Mapping[str, Traits | None]) -> Iterator[Problem]:
    """Yield what is wrong with the channel of an edge and with its two ends."""
    for end, step_id in (("source", edge.source), ("target", edge.target)):
        if step_id not in known:
            yield Problem(f"edges.{index}.{end}", _no_step(step_id))
    if edge.channel not in _CHANNELS:
        yield Problem(
            f"edges.{index}.data.channel",
            f"The channel must be flow or link, not {quoted(edge.channel)}.",
        )
        return
    if (source := known.get(edge.source)) is not None:
        names = source.handles.outputs(edge.channel)
        yield from _handle_problems(index, edge, "source", names)
    if (target := known.get(edge.target)) is not None:
        names = target.handles.inputs(edge.channel)
        yield from _handle_problems(index, edge, "target", names)


def _handle_problems(index: int, edge: Edge, end: str, names: Names) -> Iterator[Problem]:
    if end == "source":
        step_id, handle, kind = edge.source, edge.source_handle, "output"
    else:
        step_id, handle, kind = edge.target, edge.target_handle, "input"
    if names is None or handle in names:
        return
    if names:
        place = f"edges.{index}.{end}_handle"
        lacks, mend = f"{kind} {quoted(handle)}", f"It has {listed(names)}."
    else:
        place, lacks = f"edges.{index}.data.channel", kind
        mend = "Use the other channel, or another step."
    yield Problem(place, f"Step {quoted(step_id)} has no {lacks} on channel {edge.channel}. {mend}")


def _entry_problems(graph: Graph, known: Mapping[str, Traits | None]) -> Iterator[Problem]:
    if graph.entry is None:
        return
    if not graph.entry:
        yield Problem(
            "entry",
            "entry is empty, so nothing would be executed."
            " Name the steps to begin at, or leave entry out.",
        )
    named = dict(_repeated(graph.entry))
    for index, step_id in enumerate(graph.entry):
        if index in named:
            again = f"Step {quoted(step_id)} is named by entry.{named[index]} already."
            yield Problem(f"entry.{index}", f"{again} Name it once.")
        elif step_id not in known:
            yield Problem(f"entry.{index}", _no_step(step_id))


def _no_step(step_id: str) -> str:
    return f"There is no step {quoted(step_id)}. Name a step of this graph, or add it."
