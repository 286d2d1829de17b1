"""pydantic-graph: steps joined by its GraphBuilder, built once."""

import asyncio
from functools import lru_cache
from importlib import import_module
from itertools import pairwise
from typing import Any

from bench.answering import answer
from bench.timing import seconds_each_awaited

pydantic_graph: Any = import_module("pydantic_graph")  # its types are too much for mypy on 3.11


def chain(steps: int, times: int) -> float:
    """Return the time of one step of a chain."""
    graph = _chain(steps)

    async def execute() -> None:
        assert await graph.run(inputs=0) == steps

    return seconds_each_awaited(execute, times) / steps


def fan_out(width: int, times: int) -> float:
    """Return the time of one step, ``width`` parallel steps, and their sum."""
    graph = _fan(width)

    async def execute() -> None:
        assert await graph.run(inputs=-1) == width

    return seconds_each_awaited(execute, times)


async def _increment(context: Any) -> int:
    return int(context.inputs) + 1


async def _yield_once(context: Any) -> int:
    await asyncio.sleep(0)
    return int(context.inputs) + 1


@lru_cache
def _chain(steps: int) -> Any:
    builder = pydantic_graph.GraphBuilder(input_type=int, output_type=int)
    chained = [builder.step(_increment, node_id=str(number)) for number in range(steps)]
    builder.add(builder.edge_from(builder.start_node).to(chained[0]))
    for before, after in pairwise(chained):
        builder.add(builder.edge_from(before).to(after))
    builder.add(builder.edge_from(chained[-1]).to(builder.end_node))
    return builder.build()


@lru_cache
def _fan(width: int) -> Any:
    builder = pydantic_graph.GraphBuilder(input_type=int, output_type=int)
    begin = builder.step(_increment, node_id="begin")
    leaves = [builder.step(_yield_once, node_id=str(number)) for number in range(width)]
    join = builder.join(pydantic_graph.reduce_sum, initial=0)
    builder.add(
        builder.edge_from(builder.start_node).to(begin),
        builder.edge_from(begin).to(*leaves),
        builder.edge_from(*leaves).to(join),
        builder.edge_from(join).to(builder.end_node),
    )
    return builder.build()


if __name__ == "__main__":
    answer({"chain": chain, "fan_out": fan_out})
