"""The memory of one process during many runs."""

from collections.abc import Sequence
from statistics import linear_regression
from typing import Final

from bench.figures import Check, Figure, Samples, Target
from bench.harness import OURS, Effort, Row
from bench.load import put_load
from bench.rows.one_step_graph import GRAPH_RUN
from bench.servers import database, process_at, service

IN_FLIGHT: Final = 16
LOOKS: Final = 10
FLAT: Final = Target(must=100, stretch=20, unit="bytes a run")
"""Our own threshold: 50,000 runs may leave five megabytes."""


async def measure(effort: Effort) -> Sequence[Figure]:
    """Execute 50,000 runs of one step, and read the memory after each tenth."""
    each = effort.choose(5_000, 1_000)
    with database() as url:
        async with service(url) as address:
            process = process_at(address)
            held = [process.memory_info().rss]
            for _ in range(LOOKS):
                await put_load(address, GRAPH_RUN, connections=IN_FLIGHT, requests=each)
                held.append(process.memory_info().rss)
    third = LOOKS // 3 + 1
    slopes = {
        "the first third": Samples((_slope(held[:third]) / each,)),
        "the last third": Samples((_slope(held[-third:]) / each,)),
    }
    check = Check(what="in the last third", value=slopes["the last third"].median, target=FLAT)
    sizes = {OURS: Samples(tuple(rss / 1e6 for rss in held))}
    return [
        Figure(title=f"{LOOKS * each:,} runs, memory", unit="MB", sides=sizes),
        Figure(title="What they leave behind", unit="bytes a run", sides=slopes, checks=[check]),
    ]


def _slope(values: Sequence[float]) -> float:
    return linear_regression(range(len(values)), values).slope


ROW: Final = Row(title="Runs without end", peers=(), measure=measure)
