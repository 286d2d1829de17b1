"""Nodes of plugins are recorded as code while they execute, and behave as before."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest

from caseworker.engine.context import ExecutionResult, Materializing, NodeEvent
from caseworker.nodes.catalog import NodeCatalog
from caseworker.nodes.function import RecordedNode
from caseworker.nodes.node_type import NodeType
from caseworker.nodes.strict_parsing import StepData
from caseworker.platform.code_table import CodeTable
from tests.unit.nodes.world import NodeRun, graph, step


class Watched:
    """A node that executes in one of several ways, and notes the code that is recorded then."""

    replays = True

    def __init__(self, way: str, table: CodeTable) -> None:
        self.way = way
        self.table = table
        self.seen: list[list[str]] = []

    def note(self) -> None:
        self.seen.append([each.name for each in self.table.codes])

    def execute(self, data: Any, inputs: Any, context: Any) -> Any:
        self.note()
        match self.way:
            case "result":
                return ExecutionResult({"default": 1})
            case "coroutine":
                return self.later()
            case "future":
                future = asyncio.get_running_loop().create_future()
                future.set_result(ExecutionResult({"default": 1}))
                return future
            case "stream":
                return self.items()
            case "error":
                raise ValueError("broken")
            case _:
                return self.broken_later()

    async def later(self) -> ExecutionResult:
        await asyncio.sleep(0)
        self.note()
        return ExecutionResult({"default": 1})

    async def broken_later(self) -> ExecutionResult:
        self.note()
        raise ValueError("broken")

    async def items(self) -> AsyncIterator[Any]:
        async with AsyncExitStack() as stack:
            stack.callback(self.note)
            yield NodeEvent("watched.item", {})
            yield ExecutionResult({"default": 1})


@pytest.mark.parametrize(
    ("way", "times", "error"),
    [
        ("result", 1, None),
        ("coroutine", 2, None),
        ("future", 1, None),
        ("stream", 2, None),
        ("error", 1, "broken"),
        ("error later", 2, "broken"),
    ],
)
async def test_the_node_of_a_plugin_is_recorded_until_its_step_ends(
    way: str, times: int, error: str | None
) -> None:
    """Its result or failure is as without the record."""
    table = CodeTable()
    node = Watched(way, table)
    world = NodeRun(services={CodeTable: table})
    recorded = RecordedNode("watched", node)
    world.catalog = NodeCatalog(
        [NodeType(name="watched", description="", node=recorded, data=StepData)]
    )

    outcome = await world.run(graph(step("a", "watched")))

    assert node.seen == [["watched"]] * times
    assert table.codes == []
    if error is None:
        assert outcome.steps["a"].outputs == {"default": 1}
    else:
        assert error in str(outcome.error)


def test_the_attributes_of_a_node_stay() -> None:
    """The engine reads optional ones, and a node without ``materialize`` cannot be linked."""
    node = RecordedNode("watched", Watched("result", CodeTable()))

    assert node.replays
    assert not isinstance(node, Materializing)
