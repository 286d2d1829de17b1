"""One step of a graph, in a long sequence (architecture 7).

Our steps have a budget, a cancellation token, a retry policy and the ExecutionGraph; the peers have
none of these. Every step adds one to the result of the previous step.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from bench.figures import Check, Figure, Samples, Target, ratio
from bench.graph_runtimes import (
    ASYNCIO,
    BURR,
    DASK,
    HAMILTON,
    LANGGRAPH,
    PYDANTIC_GRAPH,
    Runtimes,
    requirements_of,
    runtimes,
)
from bench.harness import OURS, Effort, Row, interleaved

STEPS: Final = 100
MANY_STEPS: Final = 1_000
TIMEOUT_MS: Final = 60_000

TASK: Final = "create_task"
PEERS: Final = (LANGGRAPH, PYDANTIC_GRAPH, HAMILTON, BURR, DASK)
WAITING: Final = {
    LANGGRAPH: (LANGGRAPH, "chain"),
    PYDANTIC_GRAPH: (PYDANTIC_GRAPH, "chain"),
    HAMILTON: (HAMILTON, "chain_awaited"),
    BURR: (BURR, "chain_awaited"),
}
"""Peers with steps that may await: by title, the runtime and the question."""
BLOCKING: Final = {f"{name}, blocking": (name, "chain") for name in (HAMILTON, BURR, DASK)}
"""Peers with blocking steps: a waiting step blocks the whole process."""

AGAINST_TASK: Final = Target(must=1.0)
AGAINST_LANGGRAPH: Final = Target(must=40, stretch=60, at_least=True)
AGAINST_BEST: Final = Target(must=3, at_least=True)
GROWTH: Final = Target(must=1.3, stretch=1.1)
LIMITED: Final = Target(must=45, unit="us")


async def measure(effort: Effort) -> Sequence[Figure]:
    """Measure a chain on every side, then a longer one and one with timeouts on ours."""
    times = effort.choose(20, 5)
    async with runtimes(OURS, ASYNCIO, *PEERS) as sides:
        return [
            await _chain(sides, times, effort),
            await _longer(sides, times, effort),
            await _limited(sides, times, effort),
        ]


async def _chain(sides: Runtimes, times: int, effort: Effort) -> Figure:
    asked = {OURS: (OURS, "chain"), TASK: (ASYNCIO, "chain"), **WAITING, **BLOCKING}
    measured = await interleaved(
        {
            title: sides.side(name, question, 1e6, steps=STEPS, times=times)
            for title, (name, question) in asked.items()
        },
        effort.rounds,
    )
    title = f"{STEPS} in sequence"
    return Figure(title=title, unit="us a step", sides=measured, checks=_checks(measured))


def _checks(measured: Mapping[str, Samples]) -> list[Check]:
    ours = measured[OURS]
    against_task = ratio(ours, measured[TASK])
    faster = {
        f"faster than {LANGGRAPH}": (LANGGRAPH, AGAINST_LANGGRAPH),
        "faster than the best peer whose steps may wait": (
            fastest(measured, WAITING),
            AGAINST_BEST,
        ),
        "faster than the best peer": (fastest(measured, (*WAITING, *BLOCKING)), AGAINST_BEST),
    }
    return [
        Check(what=f"against {TASK}", value=against_task, target=AGAINST_TASK),
        *(
            Check(what=what, value=ratio(measured[peer], ours), target=target)
            for what, (peer, target) in faster.items()
        ),
    ]


def fastest(measured: Mapping[str, Samples], titles: Iterable[str]) -> str:
    """Return the side with the smallest median."""
    return min(titles, key=lambda title: measured[title].median)


async def _longer(sides: Runtimes, times: int, effort: Effort) -> Figure:
    fewer = max(times * STEPS // MANY_STEPS, 1)
    measured = await interleaved(
        {
            f"{steps:,} steps": sides.side(OURS, "chain", 1e6, steps=steps, times=executions)
            for steps, executions in ((STEPS, times), (MANY_STEPS, fewer))
        },
        effort.rounds,
    )
    short, long = measured.values()
    what = f"a step of {MANY_STEPS:,} against one of {STEPS:,}"
    check = Check(what=what, value=ratio(long, short), target=GROWTH)
    return Figure(title="Growth", unit="us a step", sides=measured, checks=[check])


async def _limited(sides: Runtimes, times: int, effort: Effort) -> Figure:
    measured = await interleaved(
        {
            OURS: sides.side(OURS, "chain", 1e6, steps=STEPS, times=times, timeout_ms=TIMEOUT_MS),
            TASK: sides.side(ASYNCIO, "chain", 1e6, steps=STEPS, times=times),
        },
        effort.rounds,
    )
    check = Check(what="a step", value=measured[OURS].median, target=LIMITED)
    return Figure(
        title="With timeout_ms on every step", unit="us a step", sides=measured, checks=[check]
    )


ROW: Final = Row(title="Graph step", peers=requirements_of(PEERS), measure=measure)
