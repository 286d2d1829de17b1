"""Sides shared by the rows about the graph runtime."""

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Final

from bench.environments import Worker, own_environment, peer_environment, worker
from bench.harness import OURS, Side

ASYNCIO: Final = "asyncio"
LANGGRAPH: Final = "langgraph"
PYDANTIC_GRAPH: Final = "pydantic-graph"
HAMILTON: Final = "hamilton"
BURR: Final = "burr"
DASK: Final = "dask"


@dataclass(frozen=True, slots=True)
class Runtime:
    """A graph runtime: its module of ``bench.sides`` and its requirements."""

    script: str
    requirements: tuple[str, ...] = ()
    """Requirements; without any it runs in this project's own environment."""


RUNTIMES: Final[Mapping[str, Runtime]] = {
    OURS: Runtime("graph_steps"),
    ASYNCIO: Runtime("asyncio_steps"),
    LANGGRAPH: Runtime("langgraph_steps", ("langgraph==1.2.22",)),
    PYDANTIC_GRAPH: Runtime("pydantic_graph_steps", ("pydantic-graph==2.68.0",)),
    HAMILTON: Runtime("hamilton_steps", ("apache-hamilton==1.90.0",)),
    BURR: Runtime("burr_steps", ("apache-burr==0.42.0",)),
    DASK: Runtime("dask_steps", ("dask==2026.8.0",)),
}


def requirements_of(names: Iterable[str]) -> tuple[str, ...]:
    """Return the pinned requirements of some runtimes."""
    return tuple(needed for name in names for needed in RUNTIMES[name].requirements)


class Runtimes:
    """Workers that execute graphs, by the names of their runtimes."""

    def __init__(self, workers: Mapping[str, Worker]) -> None:
        self._workers = workers

    def side(self, name: str, question: str, factor: float = 1.0, **arguments: object) -> Side:
        """Return a side that sends one question; ``factor`` converts seconds into the unit."""

        async def measure() -> float:
            return factor * float(await self._workers[name].ask(question, **arguments))

        return measure


@asynccontextmanager
async def runtimes(*names: str) -> AsyncIterator[Runtimes]:
    """Run a worker for each of some runtimes."""
    async with AsyncExitStack() as stack:
        workers = {}
        for name in names:
            runtime = RUNTIMES[name]
            needed = runtime.requirements
            environment = await peer_environment(*needed) if needed else own_environment()
            workers[name] = await stack.enter_async_context(worker(environment, runtime.script))
        yield Runtimes(workers)
