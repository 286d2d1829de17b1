"""One snapshot of a graph of 1,000 and of 10,000 nodes (architecture 7)."""

from collections.abc import Sequence
from typing import Final

from bench.call_graphs import FLOOR, PEER, VERONICA, call_graphs
from bench.figures import Check, Figure, Target, ratio
from bench.harness import OURS, Effort, Row, interleaved

AGAINST_PEER: Final = Target(must=0.5, stretch=0.35)


async def measure(effort: Effort) -> Sequence[Figure]:
    """Measure graphs of finished nodes without metadata, the peer's best case."""
    figures = []
    async with call_graphs() as graphs:
        for nodes in (1_000, 10_000):
            sides = {
                name: graphs.side(name, "snapshot", 1e3, nodes=nodes)
                for name in (OURS, VERONICA, FLOOR)
            }
            measured = await interleaved(sides, effort.rounds)
            value = ratio(measured[OURS], measured[VERONICA])
            check = Check(what=f"against {VERONICA}", value=value, target=AGAINST_PEER)
            figure = Figure(title=f"Of {nodes:,} nodes", unit="ms", sides=measured, checks=[check])
            figures.append(figure)
    return figures


ROW: Final = Row(title="Snapshot", peers=(PEER,), measure=measure)
