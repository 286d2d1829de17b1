"""Which steps could use one persistent node at the same time (seed 000, P4).

Two steps can run in parallel unless flow leads from one to the other. Of the steps that use a node,
put into topological order, each must lead to the next: then it leads to all that follow, and if
it does not, nothing else can keep those two apart. What leads to a step is a set of steps, held
as the bits of one integer, so the whole is a single walk over the graph however many nodes are
shared.
"""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import TypeVar

from app.kernel.components import Successors, components

Group = TypeVar("Group", bound=Hashable)


def parallel_pairs(
    users: Mapping[Group, Sequence[str]], steps: Sequence[str], successors: Successors
) -> list[tuple[str, str, Group]]:
    """Return neighbouring users of one node that nothing keeps apart, each with the node.

    An edge from the first to the second of every pair mends the graph without making a cycle.
    ``users`` are the steps that use a node, by node.
    """
    shared = {node: group for node, group in users.items() if len(group) > 1}
    bits = _bit_of_each(step for group in shared.values() for step in group)
    parts = components(steps, successors)
    part_of = {step: index for index, part in enumerate(parts) for step in part}
    before = _leading_to(parts, part_of, successors, bits)
    return [
        (earlier, later, node)
        for node, group in shared.items()
        for earlier, later in pairwise(sorted(group, key=part_of.__getitem__))
        if not before[part_of[later]] & bits[earlier]
    ]


def _bit_of_each(steps: Iterable[str]) -> dict[str, int]:
    return {step: 1 << index for index, step in enumerate(dict.fromkeys(steps))}


def _leading_to(
    parts: Sequence[Sequence[str]],
    part_of: Mapping[str, int],
    successors: Successors,
    bits: Mapping[str, int],
) -> list[int]:
    """Return the bits of the users that lead to each component, on a cycle those of its own."""
    before = [0] * len(parts)
    for index, part in enumerate(parts):  # in topological order: what leads here is complete
        leading = before[index]
        for step in part:
            leading |= bits.get(step, 0)
        for step in part:
            for target in successors.get(step, ()):
                before[part_of[target]] |= leading
    return before
