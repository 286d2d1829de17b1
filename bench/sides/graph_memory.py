"""One execution of a large graph in a separate process, through the public Python API."""

import asyncio
import gc
import tracemalloc
from time import process_time

from bench.answering import answer
from caseworker import ExecutionContext, FunctionNode, Graph


def seconds(wide: int, deep: int) -> float:
    """Return the time of building, checking and executing a graph once, by step."""
    gc.collect()
    began = process_time()
    _execute(wide, deep)
    return (process_time() - began) / (wide * deep)


def peak_bytes(wide: int, deep: int) -> float:
    """Return the peak memory of the graph and its execution, by step."""
    _execute(2, 2)  # warm up one-time costs that do not depend on the size
    gc.collect()
    tracemalloc.start()
    _execute(wide, deep)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak / (wide * deep)


def _execute(wide: int, deep: int) -> None:
    graph = Graph("large", max_parallel=wide)
    for level in range(deep):
        for lane in range(wide):
            graph.add_step(
                FunctionNode("count", _count),
                f"{lane}.{level}",
                depends_on=[f"{lane}.{level - 1}"] if level else [],
            )
    results = asyncio.run(graph.execute(ExecutionContext()))
    assert all(results[f"{lane}.{deep - 1}"] == deep for lane in range(wide))


def _count(context: ExecutionContext) -> int:
    return 1 + int(sum(context.upstream.values()))


if __name__ == "__main__":
    answer({"seconds": seconds, "peak_bytes": peak_bytes})
