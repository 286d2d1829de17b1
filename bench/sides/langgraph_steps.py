"""LangGraph: a StateGraph compiled once, without a checkpointer, awaited as its documents show."""

import asyncio
import operator
from functools import lru_cache
from typing import Annotated, Any, TypedDict

from langgraph.graph import END, START, StateGraph  # type: ignore[import-not-found]

from bench.answering import answer
from bench.timing import seconds_each_awaited


class Number(TypedDict):
    """The state passed along a chain."""

    value: int


class Numbers(TypedDict):
    """The sum of the parallel steps."""

    values: Annotated[list[int], operator.add]
    total: int


def chain(steps: int, times: int) -> float:
    """Return the time of one step of a chain."""
    graph = _chain(steps)

    async def execute() -> None:
        state = await graph.ainvoke({"value": 0}, {"recursion_limit": steps + 1})
        assert state["value"] == steps

    return seconds_each_awaited(execute, times) / steps


def fan_out(width: int, times: int) -> float:
    """Return the time of one step, ``width`` parallel steps, and one that joins them."""
    graph = _fan(width)

    async def execute() -> None:
        state = await graph.ainvoke({"values": [], "total": 0})
        assert state["total"] == width

    return seconds_each_awaited(execute, times)


@lru_cache
def _chain(steps: int) -> Any:
    async def increment(state: Number) -> Number:
        return {"value": state["value"] + 1}

    builder = StateGraph(Number)
    before = START
    for number in range(steps):
        builder.add_node(str(number), increment)
        builder.add_edge(before, str(number))
        before = str(number)
    builder.add_edge(before, END)
    return builder.compile()


@lru_cache
def _fan(width: int) -> Any:
    async def begin(state: Numbers) -> dict[str, Any]:
        return {"values": [0]}

    async def yield_once(state: Numbers) -> dict[str, Any]:
        await asyncio.sleep(0)
        return {"values": [state["values"][0] + 1]}

    async def join(state: Numbers) -> dict[str, Any]:
        return {"total": sum(state["values"])}

    builder = StateGraph(Numbers)
    builder.add_node("begin", begin)
    builder.add_edge(START, "begin")
    leaves = [str(number) for number in range(width)]
    for leaf in leaves:
        builder.add_node(leaf, yield_once)
        builder.add_edge("begin", leaf)
    builder.add_node("join", join)
    builder.add_edge(leaves, "join")
    builder.add_edge("join", END)
    return builder.compile()


if __name__ == "__main__":
    answer({"chain": chain, "fan_out": fan_out})
