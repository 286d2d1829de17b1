"""Nodes that stream progress events and end with one result."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest

from caseworker.engine.context import ExecutionResult, FlowContext, NodeEvent
from caseworker.engine.report import StepBrokenError
from tests.unit.engine.driving import GraphRun, drive, graph

Inputs = Mapping[str, Any]
Items = list[Any]


class Streams:
    """A node that yields the given items, one per second."""

    def __init__(self, *items: Any) -> None:
        self.items = items
        self.closed = False
        self.seen: list[Any] = []

    async def execute(self, data: Any, inputs: Inputs, context: FlowContext) -> AsyncIterator[Any]:
        try:
            for item in self.items:
                await asyncio.sleep(1)
                if isinstance(item, Exception):
                    raise item
                yield item
        finally:
            self.closed = True


def play(*items: Any, **options: Any) -> tuple[Any, GraphRun, Streams]:
    node = Streams(*items)
    outcome, world = drive(graph("A"), node, **options)  # type: ignore[arg-type]
    return outcome, world, node


@pytest.mark.req("004/execute", "004/lifecycle")
def test_a_stream_tells_its_events_and_ends_in_a_result() -> None:
    """A stream's events are emitted between the step's start and end events."""
    outcome, world, node = play(
        NodeEvent("text.delta", {"text": "4"}),
        NodeEvent("text.delta", {"text": "2"}),
        ExecutionResult({"default": "42"}),
    )

    assert outcome.steps["A"].outputs == {"default": "42"}
    assert [(event.type, dict(event.data)) for event in world.told] == [
        ("step.started", {}),
        ("text.delta", {"text": "4"}),
        ("text.delta", {"text": "2"}),
        ("step.completed", {}),
    ]
    assert {event.step_id for event in world.told} == {"A"}
    assert len({event.node_id for event in world.told}) == 1
    assert node.closed


@pytest.mark.req("004/execute")
@pytest.mark.parametrize(
    ("items", "said"),
    [
        ([], "returned no ExecutionResult"),
        ([NodeEvent("a.b")], "returned no ExecutionResult"),
        ([ExecutionResult(), NodeEvent("a.b")], "continued after its result"),
        ([ExecutionResult(), ExecutionResult()], "continued after its result"),
        (["text"], "not a NodeEvent"),
    ],
)
def test_a_stream_that_does_not_end_in_one_result_fails_its_step(items: Items, said: str) -> None:
    """A stream without exactly one final result fails its step."""
    outcome, _, node = play(*items)

    assert isinstance(outcome.error, StepBrokenError)
    assert said in str(outcome.error)
    assert node.closed


@pytest.mark.req("004/lifecycle")
@pytest.mark.parametrize("kind", ["step.started", "step.completed", "step.skipped"])
def test_a_node_cannot_tell_of_its_own_start_and_end(kind: str) -> None:
    """A node that emits an engine event such as step.started fails its step."""
    outcome, world, _ = play(NodeEvent(kind), ExecutionResult())

    assert str(outcome.error) == f"{kind} is reserved for the engine."
    assert world.lifecycle("A") == ["step.started", "step.error"]


def test_a_stream_that_fails_fails_its_step() -> None:
    """Events emitted before the failure remain in the event stream."""
    outcome, world, _ = play(NodeEvent("a.b"), ValueError("private"))

    assert isinstance(outcome.error, ValueError)
    assert world.lifecycle("A") == ["step.started", "a.b", "step.error"]


@pytest.mark.req("000/C3")
def test_a_stop_closes_a_stream() -> None:
    """A stop closes a running stream."""

    def before(world: GraphRun) -> None:
        asyncio.get_running_loop().call_later(1.5, world.gateway.token.cancel)

    outcome, world, node = play(NodeEvent("a.b"), NodeEvent("a.b"), before=before)

    assert outcome.stop is not None
    assert world.lifecycle("A") == ["step.started", "a.b", "step.cancelled"]
    assert node.closed
