"""How graphs in Python end: cancelled by asyncio, empty, or with invalid results; their traces."""

import asyncio
import copy
import pickle
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from caseworker import (
    Budget,
    BudgetExceededError,
    CancellationToken,
    CancelledError,
    ExecutionContext,
    ExecutionTrace,
    FunctionNode,
    Graph,
)
from caseworker.engine.context import ExecutionResult, FlowContext
from caseworker.engine.prepared import BoundNode


def trace() -> ExecutionTrace:
    return ExecutionTrace(graph_id="main", start_time=datetime.now(UTC))


def hanging(begun: asyncio.Event) -> Graph:
    async def hangs(context: ExecutionContext) -> None:
        begun.set()
        await asyncio.Event().wait()

    graph = Graph("main", max_parallel=2)
    graph.add_step(FunctionNode("n", lambda context: 1), "a")
    graph.add_step(FunctionNode("h", hangs), "b", depends_on=["a"])
    graph.add_step(FunctionNode("h", hangs), "c", depends_on=["a"])
    return graph


async def _end(task: "asyncio.Task[object]", how: str) -> None:
    if how == "cancel":
        task.cancel()
        await task
    async with asyncio.timeout(0.001):
        await task


@pytest.mark.req("000/O2")
@pytest.mark.parametrize("how", ["cancel", "timeout"])
async def test_a_graph_whose_task_is_cancelled_has_a_trace_with_an_end(how: str) -> None:
    """The trace reports the cancellation and no failed step."""
    found, begun = trace(), asyncio.Event()
    task = asyncio.create_task(hanging(begun).execute(ExecutionContext(trace=found)))
    await begun.wait()
    with pytest.raises((asyncio.CancelledError, TimeoutError)):
        await _end(task, how)

    told = found.explain()
    assert found.status == "cancelled"
    assert found.end_time is not None
    assert [step.metadata["status"] for step in found.steps] == ["success", "halt", "halt"]
    assert "Another step failed" not in told
    assert "The task that executes it was cancelled." in told


async def test_steps_that_a_failure_beside_them_cuts_off_say_so() -> None:
    """Steps that another step's failure interrupts are cancelled and not halted."""
    begun = asyncio.Event()

    async def fails(context: ExecutionContext) -> None:
        await begun.wait()
        raise RuntimeError("kaput")

    graph, found = hanging(begun), trace()
    graph.add_step(FunctionNode("f", fails), "f", depends_on=["a"])
    graph.max_parallel = 3
    ran = await graph.run(ExecutionContext(trace=found))

    assert ran.steps == {"a": "completed", "b": "cancelled", "c": "cancelled", "f": "failed"}
    assert found.error == "RuntimeError: kaput"
    assert {step.metadata["stop_reason"] for step in found.steps if step.step_id in "bc"} == {
        "Another step failed."
    }


async def test_steps_that_a_limit_cuts_off_are_halted() -> None:
    """The graph is halted too, and the steps behind them have not started."""
    graph = Graph("main")
    graph.add_step(FunctionNode("n", lambda context: 1), "a")
    graph.add_step(FunctionNode("n", lambda context: 1), "b", depends_on=["a"])
    graph.add_step(FunctionNode("n", lambda context: 1), "c", depends_on=["b"])

    ran = await graph.run(ExecutionContext(budget=Budget(max_steps=1)))

    assert (ran.status, ran.steps) == (
        "halted",
        {"a": "completed", "b": "halted", "c": "not_started"},
    )


@pytest.mark.req("000/C3")
async def test_an_empty_graph_obeys_its_stop_and_is_traced() -> None:
    """An empty graph has the same stops and trace as any other."""
    done, stopped, token = trace(), trace(), CancellationToken()
    token.cancel("enough")

    ran = await Graph("empty").run(ExecutionContext(trace=done))
    with pytest.raises(CancelledError, match="enough"):
        await Graph("empty").execute(ExecutionContext(trace=stopped, cancellation=token))
    with pytest.raises(BudgetExceededError):
        await Graph("empty").execute(ExecutionContext(budget=Budget(max_time_seconds=0)))

    assert (ran.status, ran.results, ran.calls.snapshot()["aggregates"]["max_depth"]) == (
        "completed",
        {},
        0,
    )
    assert (done.status, stopped.status, stopped.error) == ("completed", "cancelled", "enough")
    assert done.end_time is not None


@pytest.mark.parametrize("outputs", [None, [1, 2], "text", 5])
async def test_a_result_without_handles_fails_its_step(outputs: Any) -> None:
    """The node's result causes a TypeError of its step, and the graph does not crash."""

    class Broken:
        id = "broken"

        def execute(
            self, data: Any, inputs: Mapping[str, Any], context: FlowContext
        ) -> ExecutionResult:
            return ExecutionResult(outputs)

    graph = Graph("main")
    graph.add_step(BoundNode(Broken(), {}), "a")
    with pytest.raises(TypeError):
        ExecutionResult(outputs)
    ran = await graph.run()

    assert (ran.status, ran.steps) == ("failed", {"a": "failed"})
    assert isinstance(ran.error, TypeError)


@pytest.mark.req("000/O2")
@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, lambda found: pickle.loads(pickle.dumps(found))],  # noqa: S301
)
async def test_a_trace_can_be_copied_after_the_run(
    copied: Callable[[ExecutionTrace], ExecutionTrace],
) -> None:
    """The copy has the same content and is independent of the original."""
    found, graph = trace(), Graph("main")
    graph.add_step(FunctionNode("double", lambda context: context.input * 2), "a", input=21)
    await graph.execute(ExecutionContext(trace=found))

    other = copied(found)
    other.add_step(found.steps[0])

    assert (other.status, other.end_time, other.total_tokens) == (
        found.status,
        found.end_time,
        found.total_tokens,
    )
    assert other.steps[0].output == 42
    assert (len(other.steps), len(found.steps)) == (2, 1)
