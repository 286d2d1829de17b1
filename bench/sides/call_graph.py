"""An ExecutionGraph: this project's, or a peer's with the same interface.

Usage: ``call_graph.py MODULE``, with the module that has the class.
"""

import asyncio
import gc
import json
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from importlib import import_module
from time import perf_counter, process_time, sleep
from typing import Any

from bench.answering import answer

TICK_SECONDS = 0.001
COST_USD = 0.0042


class CallGraph:
    """Measurements of a class of graphs; all times are in seconds.

    Pure computation is timed by the CPU clock, which excludes other processes; waiting is timed by
    the wall clock.
    """

    def __init__(self, graph_class: Callable[[], Any]) -> None:
        self._graph_class = graph_class
        self._graphs: dict[int, Any] = {}

    def life(self, nodes: int, *, exact: bool = False) -> float:
        """Return the time of one node's life, in a new graph of ``nodes`` nodes.

        ``exact`` records the cost as a Decimal instead of a float as in the document.
        """
        gc.collect()
        began = process_time()
        self._grow(nodes, Decimal(str(COST_USD)) if exact else COST_USD)
        return (process_time() - began) / nodes

    def snapshot(self, nodes: int) -> float:
        """Return the time of one snapshot."""
        graph = self._grown(nodes)
        began = process_time()
        graph.snapshot()
        return process_time() - began

    def lock_held(self, nodes: int) -> float:
        """Return how long one snapshot holds the graph's lock."""
        graph = self._grown(nodes)
        with timed_lock(graph) as held:
            graph.snapshot()
        return max(held)

    def changes(self, nodes: int) -> float:
        """Return the time to begin one more node and to read the change."""
        graph = self._grown(nodes)
        revision = graph.revision
        began = process_time()
        graph.begin_node("n000001", "llm", "plan_step")
        graph.changed_since(revision)
        return process_time() - began

    def delays(self, nodes: int, way: str) -> list[float]:
        """Return the delay of each tick of an event loop during a snapshot taken in some way."""
        return asyncio.run(_delays(self._ways(nodes)[way]))

    def _ways(self, nodes: int) -> dict[str, Callable[[], Awaitable[None]]]:
        graph = self._grown(nodes)

        async def dict_in_thread() -> None:
            await asyncio.to_thread(lambda: _drop(graph.snapshot()))

        async def json_in_thread() -> None:
            await asyncio.to_thread(lambda: _drop(json.dumps(graph.snapshot())))

        async def parts_in_thread() -> None:
            await asyncio.to_thread(_write_parts, graph)

        async def parts_on_loop() -> None:
            for part in graph.capture().json_parts():
                _drop(part)
                await asyncio.sleep(0)

        ways = (dict_in_thread, json_in_thread, parts_in_thread, parts_on_loop)
        return {way.__name__: way for way in ways}

    def _grown(self, nodes: int) -> Any:
        if nodes not in self._graphs:
            self._graphs.clear()
            self._graphs[nodes] = self._grow(nodes, COST_USD)
        return self._graphs[nodes]

    def _grow(self, nodes: int, cost_usd: float | Decimal) -> Any:
        graph = self._graph_class()
        root = graph.create_root("agent_run")
        for _ in range(nodes):
            node_id = graph.begin_node(root, "llm", "plan_step", "claude-sonnet-4-6")
            graph.mark_running(node_id)
            graph.mark_success(node_id, cost_usd, 120, 80)
        return graph


class TimedLock:
    """A lock that records how long it was held, however it is acquired."""

    def __init__(self, lock: Any) -> None:
        self._lock = lock
        self._depth = 0
        self._since = 0.0
        self.held: list[float] = []

    def acquire(self) -> None:
        """Acquire the lock."""
        self._lock.acquire()
        self._depth += 1
        if self._depth == 1:
            self._since = perf_counter()

    def release(self) -> None:
        """Release the lock."""
        self._depth -= 1
        if self._depth == 0:
            self.held.append(perf_counter() - self._since)
        self._lock.release()

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


@contextmanager
def timed_lock(graph: Any) -> Iterator[list[float]]:
    """Record how long the graph's lock is held within the block."""
    plain = graph._lock  # both classes name it so
    timed = TimedLock(plain)
    graph._lock = timed
    try:
        yield timed.held
    finally:
        graph._lock = plain


async def _delays(work: Callable[[], Awaitable[None]]) -> list[float]:
    delays: list[float] = []

    async def tick() -> None:
        while True:
            began = perf_counter()
            await asyncio.sleep(TICK_SECONDS)
            delays.append(max(perf_counter() - began - TICK_SECONDS, 0))

    ticking = asyncio.create_task(tick())
    await asyncio.sleep(20 * TICK_SECONDS)
    delays.clear()
    await work()
    await asyncio.sleep(2 * TICK_SECONDS)
    ticking.cancel()
    return delays


def _write_parts(graph: Any) -> None:
    for part in graph.capture().json_parts():
        _drop(part)
        sleep(0)  # gives the interpreter to the loop, which otherwise waits a switch interval


def _drop(_: object) -> None:
    """Free a result in the thread that made it, as a writer would."""


if __name__ == "__main__":
    graphs = CallGraph(import_module(sys.argv[1]).ExecutionGraph)
    answer(
        {
            "life": graphs.life,
            "snapshot": graphs.snapshot,
            "lock_held": graphs.lock_held,
            "changes": graphs.changes,
            "delays": graphs.delays,
        }
    )
