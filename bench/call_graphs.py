"""Sides shared by the rows about the ExecutionGraph."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

from bench.environments import Worker, own_environment, peer_environment, worker
from bench.harness import OURS, Side

PEER: Final = "veronica-core==3.10.0"
VERONICA: Final = "veronica-core"
FLOOR: Final = "bare dicts"


class Questioned:
    """Workers that answer questions about graphs, by the names of their sides."""

    def __init__(self, workers: dict[str, Worker]) -> None:
        self._workers = workers

    def side(self, name: str, question: str, factor: float = 1.0, **arguments: object) -> Side:
        """Return a side that sends one question; ``factor`` converts seconds into the unit."""

        async def measure() -> float:
            return factor * float(await self.ask(name, question, **arguments))

        return measure

    async def ask(self, name: str, question: str, **arguments: object) -> Any:
        """Return one side's answer."""
        return await self._workers[name].ask(question, **arguments)


@asynccontextmanager
async def call_graphs() -> AsyncIterator[Questioned]:
    """Run a worker for this project's graph, the peer's and the floor."""
    own, peer = own_environment(), await peer_environment(PEER)
    modules = {
        OURS: (own, "call_graph", ["caseworker.core.trace.execution_graph"]),
        VERONICA: (peer, "call_graph", ["veronica_core.containment.execution_graph"]),
        FLOOR: (own, "bare_records", []),
    }
    async with AsyncExitStack() as stack:
        workers = {
            name: await stack.enter_async_context(worker(environment, script, arguments))
            for name, (environment, script, arguments) in modules.items()
        }
        yield Questioned(workers)
