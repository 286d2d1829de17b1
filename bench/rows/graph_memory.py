"""Large graphs, built, checked and executed once, each in a new process (without a target)."""

from collections.abc import Sequence
from typing import Final

from bench.environments import own_environment, worker
from bench.figures import Check, Figure, Samples, Target, ratio
from bench.harness import Effort, Row, Side, interleaved

SHAPES: Final = {
    "1,000 deep": (1, 1_000),
    "10,000 deep": (1, 10_000),
    "100 wide, 100 deep": (100, 100),
}
FLAT: Final = Target(must=1.5, stretch=1.2)
"""Our own threshold for growth: a step of 10,000 against one of 1,000."""


async def measure(effort: Effort) -> Sequence[Figure]:
    """Measure time and peak memory in separate processes."""
    rounds = effort.choose(5, 1)
    seconds = await interleaved(_sides("seconds", 1e6), rounds)
    memory = await interleaved(_sides("peak_bytes", 1 / 1024), rounds)
    return [_figure("Time", "us a step", seconds), _figure("Peak of memory", "KiB a step", memory)]


def _sides(question: str, factor: float) -> dict[str, Side]:
    return {
        title: _fresh(question, factor, wide=wide, deep=deep)
        for title, (wide, deep) in SHAPES.items()
    }


def _fresh(question: str, factor: float, **arguments: object) -> Side:
    """Return a side that starts a new process for each single question."""

    async def measure() -> float:
        async with worker(own_environment(), "graph_memory") as asked:
            return factor * float(await asked.ask(question, **arguments))

    return measure


def _figure(title: str, unit: str, measured: dict[str, Samples]) -> Figure:
    small, *larger = SHAPES
    checks = [
        Check(
            what=f"{shape} against {small}",
            value=ratio(measured[shape], measured[small]),
            target=FLAT,
        )
        for shape in larger
    ]
    return Figure(title=title, unit=unit, sides=measured, checks=checks)


ROW: Final = Row(title="Large graphs", peers=(), measure=measure)
