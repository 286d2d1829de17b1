"""Which steps lead to one another, and in what order the others follow.

Two steps are in one component if each can be reached from the other, so a component of several
steps, or of one step that leads to itself, is what a cycle runs through. Components never form a
cycle among themselves; they come in topological order. This is Kosaraju's algorithm: in the reverse
of the order in which a depth-first walk leaves the steps, everything that can be reached backwards
from a step and has no component yet belongs to its component. Walks keep their own stack: a
graph may be deeper than Python's.
"""

from collections.abc import Iterable, Mapping, Sequence

from caseworker.kernel.graph import Edge

Successors = Mapping[str, Sequence[str]]
"""Where the edges of a step lead; a step may be absent, and a target may be repeated."""


def successors_of(edges: Iterable[Edge]) -> Successors:
    """Return where ``edges`` lead, by source, in the order of the edges."""
    following: dict[str, list[str]] = {}
    for edge in edges:
        following.setdefault(edge.source, []).append(edge.target)
    return following


def components(steps: Sequence[str], successors: Successors) -> list[list[str]]:
    """Return the components in topological order, the members of each in the order of ``steps``.

    All successors must be among ``steps``.
    """
    at = {step: index for index, step in enumerate(steps)}
    predecessors: dict[str, list[str]] = {}
    for source, targets in successors.items():
        for target in targets:
            predecessors.setdefault(target, []).append(source)
    found: list[list[str]] = []
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
        found.append(sorted(component, key=at.__getitem__))
    return found


def cycle_in(component: Sequence[str], successors: Successors) -> tuple[str, ...] | None:
    """Return the shortest way from the component's first step back to it, or None.

    The step stands at both ends: ``("a", "b", "a")``.
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
    """Return the steps in the order in which a depth-first walk leaves them.

    It walks backwards through ``steps`` and successors, so that independent steps keep their order
    once this is reversed.
    """
    left: list[str] = []
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
                left.append(step)
                path.pop()
            else:
                seen.add(target)
                path.append((target, reversed(successors.get(target, ()))))
    return left


def _way(start: str, end: str, came_from: Mapping[str, str]) -> list[str]:
    way = [end]
    while way[-1] != start:
        way.append(came_from[way[-1]])
    return way[::-1]
