"""The life of one node: begin_node, mark_running, mark_success (architecture 7)."""

from collections.abc import Sequence
from typing import Final

from bench.call_graphs import FLOOR, PEER, VERONICA, Questioned, call_graphs
from bench.figures import Check, Figure, Samples, Target, ratio
from bench.harness import OURS, Effort, Row, interleaved

EXACT: Final = f"{OURS}, cost as Decimal"
AGAINST_PEER: Final = Target(must=0.6, stretch=0.4)
FLAT: Final = Target(must=1.5, stretch=1.2)
"""Our own threshold for "flat": a node in a graph a hundred times as large.

Memory effects alone more than double the time of the bare dicts.
"""


async def measure(effort: Effort) -> Sequence[Figure]:
    """Measure graphs of three sizes."""
    async with call_graphs() as graphs:
        sizes = (1_000, 10_000, effort.choose(100_000, 30_000))
        measured = [await _measure_size(graphs, nodes, effort) for nodes in sizes]
    figures = [_figure(nodes, sides) for nodes, sides in zip(sizes, measured, strict=True)]
    growth = ratio(measured[-1][OURS], measured[0][OURS])
    what = f"a node in a graph of {sizes[-1]:,} against one of {sizes[0]:,}"
    flat = Figure(
        title="Growth",
        unit="us a node",
        sides={
            f"{nodes:,} nodes": sides[OURS] for nodes, sides in zip(sizes, measured, strict=True)
        },
        checks=[Check(what=what, value=growth, target=FLAT)],
    )
    return [*figures, flat]


async def _measure_size(graphs: Questioned, nodes: int, effort: Effort) -> dict[str, Samples]:
    sides = {
        OURS: graphs.side(OURS, "life", 1e6, nodes=nodes),
        EXACT: graphs.side(OURS, "life", 1e6, nodes=nodes, exact=True),
        VERONICA: graphs.side(VERONICA, "life", 1e6, nodes=nodes),
        FLOOR: graphs.side(FLOOR, "life", 1e6, nodes=nodes),
    }
    return await interleaved(sides, effort.rounds)


def _figure(nodes: int, sides: dict[str, Samples]) -> Figure:
    checks = [
        Check(what=f"{ours} against {VERONICA}", value=value, target=AGAINST_PEER)
        for ours in (OURS, EXACT)
        for value in [ratio(sides[ours], sides[VERONICA])]
    ]
    return Figure(title=f"In a graph of {nodes:,}", unit="us a node", sides=sides, checks=checks)


ROW: Final = Row(title="CallNode life: begin, running, success", peers=(PEER,), measure=measure)
