"""One step, a hundred in parallel, and one that joins them (architecture 7)."""

from collections.abc import Sequence
from typing import Final

from bench.figures import Check, Figure, Target, ratio
from bench.graph_runtimes import (
    ASYNCIO,
    LANGGRAPH,
    PYDANTIC_GRAPH,
    requirements_of,
    runtimes,
)
from bench.harness import OURS, Effort, Row, interleaved

WIDTH: Final = 100
TASK_GROUP: Final = "TaskGroup"
AGAINST_GROUP: Final = Target(must=3, stretch=2)
AGAINST_LANGGRAPH: Final = Target(must=20, at_least=True)


async def measure(effort: Effort) -> Sequence[Figure]:
    """Measure steps that each yield to the event loop once."""
    size = {"width": WIDTH, "times": effort.choose(20, 5)}
    async with runtimes(OURS, ASYNCIO, LANGGRAPH, PYDANTIC_GRAPH) as sides:
        measured = await interleaved(
            {
                OURS: sides.side(OURS, "fan_out", 1e3, **size),
                TASK_GROUP: sides.side(ASYNCIO, "fan_out", 1e3, **size),
                LANGGRAPH: sides.side(LANGGRAPH, "fan_out", 1e3, **size),
                PYDANTIC_GRAPH: sides.side(PYDANTIC_GRAPH, "fan_out", 1e3, **size),
            },
            effort.rounds,
        )
    ours = measured[OURS]
    checks = [
        Check(
            what=f"against a {TASK_GROUP}",
            value=ratio(ours, measured[TASK_GROUP]),
            target=AGAINST_GROUP,
        ),
        Check(
            what=f"faster than {LANGGRAPH}",
            value=ratio(measured[LANGGRAPH], ours),
            target=AGAINST_LANGGRAPH,
        ),
    ]
    return [Figure(title=f"{WIDTH} wide", unit="ms", sides=measured, checks=checks)]


ROW: Final = Row(
    title="Graph fan-out and join",
    peers=requirements_of((LANGGRAPH, PYDANTIC_GRAPH)),
    measure=measure,
)
