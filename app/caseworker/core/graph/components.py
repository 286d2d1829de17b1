"""Strongly connected components of a graph, and the cycles in them (Kosaraju's algorithm).

Two steps are in the same component if each is reachable from the other. A cycle therefore lies
within a component of several steps, or of one step with an edge to itself. The components
themselves form no cycle; they are returned in topological order.

A first depth-first search records the order in which it leaves the steps. The second search visits
the steps in the reverse of that order and follows edges backwards. The steps that it reaches and
that have no component yet form one component. Both searches keep an explicit stack, because a graph
may be deeper than Python's recursion limit.
"""

from collections.abc import Iterable, Mapping, Sequence

from caseworker.core.graph.graph import Edge

Successors = Mapping[str, Sequence[str]]
"""Edge targets by source step. A step without outgoing edges may be absent; targets may be
repeated."""


def successors_of(edges: Iterable[Edge]) -> Successors:
    """Return the targets of ``edges`` by source step, in the order of the edges."""
    following: dict[str, list[str]] = {}
    for edge in edges:
        following.setdefault(edge.source, []).append(edge.target)
    return following


def components(steps: Sequence[str], successors: Successors) -> list[list[str]]:
    """Return the strongly connected components in topological order.

    The steps of each component are in the order of ``steps``. All successors must be in ``steps``.
    """
    at = {step: index for index, step in enumerate(steps)}
    predecessors: dict[str, list[str]] = {}
    for source, targets in successors.items():
        for target in targets:
            predecessors.setdefault(target, []).append(source)
    groups: list[list[str]] = []
    placed: set[str] = set()
    for root in reversed(_left_in_order(steps, successors)):
        if root in placed:
            continue
        placed.add(root)
        component = [root]
        for step in component:  # grows while it is walked
            fresh = {s: None for s in predecessors.get(step, ()) if s not in placed}
            placed.update(fresh)
            component += fresh
        groups.append(sorted(component, key=at.__getitem__))
    return groups


def cycle_in(component: Sequence[str], successors: Successors) -> tuple[str, ...] | None:
    """Return the shortest cycle through the first step of the component, or None.

    The first step is repeated at the end: ``("a", "b", "a")``.
    """
    start = component[0]
    members = set(component)
    came_from: dict[str, str] = {}
    walked = [start]
    for step in walked:  # grows while it is walked
        for target in successors.get(step, ()):
            if target == start:
                return (*_way(start, step, came_from), start)
            if target in members and target not in came_from:
                came_from[target] = step
                walked.append(target)
    return None


def _left_in_order(steps: Sequence[str], successors: Successors) -> list[str]:
    """Return the steps in depth-first post-order.

    Visits ``steps`` and successors last to first, so that independent steps keep their order once
    the caller reverses the result.
    """
    finished: list[str] = []
    seen: set[str] = set()
    for root in reversed(steps):
        if root in seen:
            continue
        seen.add(root)
        path = [(root, reversed(successors.get(root, ())))]
        while path:
            step, rest = path[-1]
            target = next((one for one in rest if one not in seen), None)
            if target is None:
                finished.append(step)
                path.pop()
            else:
                seen.add(target)
                path.append((target, reversed(successors.get(target, ()))))
    return finished


def _way(start: str, end: str, came_from: Mapping[str, str]) -> list[str]:
    way = [end]
    while way[-1] != start:
        way.append(came_from[way[-1]])
    return way[::-1]
