"""How a snapshot of 100,000 nodes blocks the lock and the event loop (architecture 7)."""

from collections.abc import Sequence
from typing import Final

from bench.call_graphs import PEER, VERONICA, Questioned, call_graphs
from bench.figures import Check, Figure, Samples, Target
from bench.harness import OURS, Effort, Row, interleaved

NODES: Final = 100_000
LOCK: Final = Target(must=1.0, unit="ms")
STALL: Final = Target(must=15.0, unit="ms")

RECOMMENDED: Final = ("JSON parts on the loop", "JSON parts in a thread")
"""The ways that ``GraphCapture`` recommends for this size; others are shown without a check."""

WAYS: Final = {
    "JSON parts on the loop": (OURS, "parts_on_loop"),
    "JSON parts in a thread": (OURS, "parts_in_thread"),
    "dict in a thread": (OURS, "dict_in_thread"),
    "dict and JSON in a thread": (OURS, "json_in_thread"),
    f"{VERONICA}, dict in a thread": (VERONICA, "dict_in_thread"),
    f"{VERONICA}, dict and JSON in a thread": (VERONICA, "json_in_thread"),
}


async def measure(effort: Effort) -> Sequence[Figure]:
    """Measure how long the lock is held, and how late the loop's ticks are in that time."""
    async with call_graphs() as graphs:
        names = (OURS, VERONICA)
        sides = {name: graphs.side(name, "lock_held", 1e3, nodes=NODES) for name in names}
        held = await interleaved(sides, effort.rounds)
        delays = await _delays(graphs, rounds=effort.choose(10, 3))
    worst = max(held[OURS].values)
    return [
        Figure(
            title="Lock held",
            unit="ms",
            sides=held,
            checks=[Check(what="the longest", value=worst, target=LOCK)],
        ),
        Figure(
            title="Event loop late by",
            unit="ms a tick",
            sides=delays,
            checks=[
                Check(what=f"p99, {way}", value=delays[way].percentile(99), target=STALL)
                for way in RECOMMENDED
            ],
        ),
    ]


async def _delays(graphs: Questioned, rounds: int) -> dict[str, Samples]:
    """Collect the ticks of several snapshots, taken in every way in turn."""
    delays: dict[str, list[float]] = {title: [] for title in WAYS}
    for _ in range(rounds):
        for title, (name, way) in WAYS.items():
            seconds = await graphs.ask(name, "delays", nodes=NODES, way=way)
            delays[title].extend(1e3 * second for second in seconds)
    return {title: Samples(tuple(values)) for title, values in delays.items()}


ROW: Final = Row(title=f"Snapshot of {NODES:,} nodes", peers=(PEER,), measure=measure)
