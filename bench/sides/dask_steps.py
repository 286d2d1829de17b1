"""dask: a graph of its Task objects, on its synchronous scheduler; the graph is made once."""

from functools import lru_cache
from typing import Any

import dask  # type: ignore[import-not-found]
from dask.task_spec import DataNode, Task, TaskRef  # type: ignore[import-not-found]

from bench.answering import answer
from bench.timing import seconds_each


def chain(steps: int, times: int) -> float:
    """Return the time of one step of a chain of plain functions, which cannot wait."""
    graph = _chain(steps)

    def execute() -> None:
        assert dask.get(graph, steps) == steps

    return seconds_each(execute, times) / steps


@lru_cache
def _chain(steps: int) -> dict[int, Any]:
    graph: dict[int, Any] = {0: DataNode(0, 0)}
    for number in range(1, steps + 1):
        graph[number] = Task(number, _increment, TaskRef(number - 1))
    return graph


def _increment(value: int) -> int:
    return value + 1


if __name__ == "__main__":
    answer({"chain": chain})
