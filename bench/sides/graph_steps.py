"""This project's graph runtime, through its public Python API."""

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from bench.answering import answer
from bench.timing import seconds_each_awaited
from caseworker import (
    Budget,
    CancellationToken,
    ErrorPolicy,
    ExecutionContext,
    ExecutionTrace,
    FunctionNode,
    Graph,
)

AMPLE = Budget(max_tokens=10**9, max_steps=10**9, max_cost_dollars=1_000_000)


def chain(steps: int, times: int, *, timeout_ms: int | None = None) -> float:
    """Return the time of one step of a chain: with limits, a token and a policy on every step."""
    graph = _chain(steps, timeout_ms)

    async def execute() -> None:
        context = ExecutionContext(budget=AMPLE, cancellation=CancellationToken())
        results = await graph.execute(context)
        assert results[str(steps - 1)] == steps

    return seconds_each_awaited(execute, times) / steps


def fan_out(width: int, times: int) -> float:
    """Return the time of one step, ``width`` parallel steps, and one that joins them."""
    graph = _fan(width)

    async def execute() -> None:
        context = ExecutionContext(budget=AMPLE, cancellation=CancellationToken())
        results = await graph.execute(context)
        assert results["join"] == width

    return seconds_each_awaited(execute, times)


def protocol(*, traced: bool = False, read: bool = False) -> float:
    """Return the mean time of ten executions of 100 steps, as in the requirement on tracing.

    ``read`` also reads the trace once, which builds it.
    """
    graph = _independent(100)

    async def execute() -> None:
        trace = ExecutionTrace("perf-test", datetime.now(UTC)) if traced else None
        results = await graph.execute(ExecutionContext(session=None, trace=trace))
        assert len(results) == 100
        if trace is not None and read:
            assert len(trace.steps) == 100

    return seconds_each_awaited(execute, 10)


@lru_cache
def _chain(steps: int, timeout_ms: int | None) -> Graph:
    policy = ErrorPolicy(on_error="retry", retry_count=2, timeout_ms=timeout_ms)
    graph = Graph("chain")
    graph.add_step(FunctionNode("increment", lambda _: 1), "0", error_policy=policy)
    for number in range(1, steps):
        before = str(number - 1)
        graph.add_step(
            FunctionNode("increment", _one_more_than(before)),
            str(number),
            depends_on=[before],
            error_policy=policy,
        )
    return graph


@lru_cache
def _fan(width: int) -> Graph:
    async def yield_once(context: ExecutionContext) -> int:
        await asyncio.sleep(0)
        return int(context.upstream["begin"]) + 1

    graph = Graph("fan", max_parallel=width)
    graph.add_step(FunctionNode("begin", lambda _: 0), "begin")
    for number in range(width):
        graph.add_step(FunctionNode("leaf", yield_once), str(number), depends_on=["begin"])
    join = FunctionNode("join", lambda context: sum(context.upstream.values()))
    graph.add_step(join, "join", depends_on=map(str, range(width)))
    return graph


@lru_cache
def _independent(steps: int) -> Graph:
    """Return a graph whose steps depend on each other only by their order."""
    graph = Graph("perf-test")
    for number in range(steps):
        node = FunctionNode("increment", lambda context: context.input + 1)
        before = [str(number - 1)] if number else []
        graph.add_step(node, str(number), input=number, depends_on=before)
    return graph


def _one_more_than(before: str) -> Callable[[ExecutionContext], Any]:
    return lambda context: context.upstream[before] + 1


if __name__ == "__main__":
    answer({"chain": chain, "fan_out": fan_out, "protocol": protocol})
