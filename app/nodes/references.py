"""Graphs that stand in other graphs by name only."""

from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any, TypeGuard

from app.nodes.nesting import MAX_NESTING

Place = tuple[str | int, ...]
"""Keys and indexes, from the outermost graph on."""


@dataclass(frozen=True, slots=True)
class GraphReference:
    """A registered graph that must be put in the place of its name before a graph can be used."""

    place: Place
    """Where the object with the name stands."""
    name: str
    version: int | None = None
    """None: the newest."""


def is_reference(graph: Any) -> TypeGuard[Mapping[str, Any]]:
    """Tell whether this stands for a graph and is none: it has a name and no steps."""
    return isinstance(graph, Mapping) and "name" in graph and "steps" not in graph


def references_in(
    graph: Any, nesting: Set[str], place: Place = (), depth: int = 0
) -> Iterator[GraphReference]:
    """Yield the graphs that are only named inside ``graph``; what cannot be read is passed over.

    ``nesting`` are the types whose steps have graphs in their data.
    """
    steps = graph.get("steps") if isinstance(graph, Mapping) else None
    if not isinstance(steps, list) or depth >= MAX_NESTING:
        return
    for index, step in enumerate(steps):
        at = (*place, "steps", index)
        yield from _in_work(step, nesting, at, depth)
        policy = step.get("policy") if isinstance(step, Mapping) else None
        if isinstance(policy, Mapping):
            yield from _in_work(policy.get("fallback"), nesting, (*at, "policy", "fallback"), depth)


def _in_work(work: Any, nesting: Set[str], place: Place, depth: int) -> Iterator[GraphReference]:
    """Look into something that has data: a step, a fallback, the step of a map."""
    if not isinstance(work, Mapping) or depth >= MAX_NESTING:
        return
    data, kind = work.get("data"), work.get("type")
    if not isinstance(data, Mapping) or not isinstance(kind, str) or kind not in nesting:
        return
    yield from _in_work(data.get("step"), nesting, (*place, "data", "step"), depth + 1)
    inner, at = data.get("graph"), (*place, "data", "graph")
    if is_reference(inner):
        yield from _reference(inner, at)
    else:
        yield from references_in(inner, nesting, at, depth + 1)


def _reference(found: Mapping[str, Any], place: Place) -> Iterator[GraphReference]:
    name, version = found["name"], found.get("version")
    whole = isinstance(version, int) and not isinstance(version, bool)
    if isinstance(name, str) and (version is None or whole):
        yield GraphReference(place, name, version)
