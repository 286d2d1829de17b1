"""The time to read one change of a graph for the journal, at any size (architecture 7)."""

from collections.abc import Sequence
from typing import Final

from bench.call_graphs import call_graphs
from bench.figures import Check, Figure, Target, ratio
from bench.harness import OURS, Effort, Row, interleaved

FLAT: Final = Target(must=1.5, stretch=1.2)
"""Our own threshold for "does not grow with the run"."""


async def measure(effort: Effort) -> Sequence[Figure]:
    """Measure one node, begun and read, in a small and in a large graph."""
    sizes = (1_000, effort.choose(100_000, 30_000))
    measured = {}
    async with call_graphs() as graphs:
        for nodes in sizes:
            sides = {OURS: graphs.side(OURS, "changes", 1e6, nodes=nodes)}
            measured[f"{nodes:,} nodes"] = (await interleaved(sides, 40 * effort.rounds))[OURS]
    small, large = measured.values()
    check = Check(what="large against small", value=ratio(large, small), target=FLAT)
    return [Figure(title="One change read", unit="us", sides=measured, checks=[check])]


ROW: Final = Row(title="Trace persistence: reading what changed", peers=(), measure=measure)
