"""Outcomes, events and deadlines of graphs that a Python program runs."""

import asyncio
import time
from datetime import UTC, datetime, timedelta

import pytest

from caseworker import (
    Budget,
    ErrorPolicy,
    ExecutionContext,
    FunctionNode,
    Graph,
    GraphRun,
    StepTimeoutError,
)
from tests.typing import public_api
from tests.unit.runtime_api.functions import constant


def broken(_: ExecutionContext) -> None:
    raise LookupError("no such page")


async def test_a_run_says_which_step_failed_and_which_was_recovered() -> None:
    """The outcome holds the exceptions, also those that a policy recovered."""
    graph = Graph("g")
    graph.add_step(
        FunctionNode("n", broken),
        "kept",
        error_policy=ErrorPolicy(on_error="skip", fallback_value=0),
    )
    graph.add_step(FunctionNode("n", broken), "lost", depends_on=["kept"])

    run = await graph.run()

    assert run.status == "failed"
    assert run.steps == {"kept": "completed", "lost": "failed"}
    assert {step: type(error) for step, error in run.errors.items()} == {
        "kept": LookupError,
        "lost": LookupError,
    }
    assert run.recovered == {"kept": "skip"}


async def test_a_graph_run_by_a_node_is_nested() -> None:
    """A nested graph is charged to the outer step's budget and is below it in the trace."""
    inner = Graph("inner")
    inner.add_step(constant(1), "x")

    async def outer_step(context: ExecutionContext) -> str:
        run = await inner.run(context)
        return run.status

    outer = Graph("outer")
    outer.add_step(FunctionNode("n", outer_step), "a")
    context = ExecutionContext(budget=Budget(max_steps=2))

    run = await outer.run(context)

    assert run.results == {"a": "completed"}
    assert context.usage.steps_executed == 2
    assert [node["name"] for node in run.calls.snapshot()["nodes"].values()][1:] == ["a", "a/x"]


async def test_a_nested_run_returns_how_its_graph_failed() -> None:
    """As at the top level, run() returns the failure and execute() raises it."""
    inner = Graph("inner")
    inner.add_step(FunctionNode("n", broken), "x")

    async def outer_step(context: ExecutionContext) -> tuple[str, list[str]]:
        run = await inner.run(context)
        return run.status, list(run.errors)

    outer = Graph("outer")
    outer.add_step(FunctionNode("n", outer_step), "a")

    assert (await outer.execute())["a"] == ("failed", ["x"])


async def test_a_plain_function_that_takes_longer_than_its_timeout_has_failed() -> None:
    """The function cannot be interrupted, but its late result is discarded."""

    def slow(_: ExecutionContext) -> int:
        until = time.monotonic() + 0.05
        while time.monotonic() < until:
            pass
        return 1

    graph = Graph("g")
    graph.add_step(FunctionNode("n", slow), "a", error_policy=ErrorPolicy(timeout_ms=5))

    with pytest.raises(StepTimeoutError):
        await graph.execute()


async def test_a_deadline_ends_a_run() -> None:
    """The deadline applies however much of the budget is left."""

    async def endless(_: ExecutionContext) -> None:
        await asyncio.Event().wait()

    graph = Graph("g", grace_seconds=1)
    graph.add_step(FunctionNode("n", endless), "a")
    soon = datetime.now(UTC) + timedelta(milliseconds=20)

    run = await graph.run(ExecutionContext(deadline=soon))

    assert run.status == "halted"
    assert run.stop is not None
    assert run.stop.cause.kind == "deadline"


async def test_a_deadline_that_has_passed_lets_nothing_begin() -> None:
    """The deadline is checked before the first step."""
    called: list[str] = []
    graph = Graph("g")
    graph.add_step(FunctionNode("n", lambda _: called.append("a")), "a")

    run = await graph.run(ExecutionContext(deadline=datetime.now(UTC) - timedelta(seconds=1)))

    assert (run.status, called) == ("halted", [])


def test_a_deadline_needs_a_zone() -> None:
    """A naive time would mean a different deadline on each machine."""
    with pytest.raises(ValueError, match="zone"):
        ExecutionContext(deadline=datetime(2030, 1, 1))  # noqa: DTZ001 - the point of it


async def test_the_events_of_a_run_can_be_followed_while_it_works() -> None:
    """Events arrive in order, and the run's outcome comes last."""
    passed = asyncio.Event()

    async def second(_: ExecutionContext) -> int:
        await passed.wait()
        return 2

    graph = Graph("g")
    graph.add_step(constant(1), "a")
    graph.add_step(FunctionNode("n", second), "b", depends_on=["a"])
    seen = []

    async for item in graph.stream():
        seen.append(item if isinstance(item, GraphRun) else (item.type, item.step_id))
        if seen[-1] == ("step.started", "b"):
            passed.set()  # never set if events came only at the end

    *events, run = seen
    assert events == [
        ("step.started", "a"),
        ("step.completed", "a"),
        ("step.started", "b"),
        ("step.completed", "b"),
    ]
    assert isinstance(run, GraphRun)
    assert run.results == {"a": 1, "b": 2}


async def test_who_stops_following_stops_the_run() -> None:
    """No task is left running after the stream is closed."""
    ended = asyncio.Event()

    async def endless(_: ExecutionContext) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    graph = Graph("g")
    graph.add_step(FunctionNode("n", endless), "a")
    stream = graph.stream()

    await anext(stream)
    await stream.aclose()

    assert ended.is_set()


async def test_seconds_are_counted_from_the_first_execution() -> None:
    """A context created long before the execution has lost no time."""
    context = ExecutionContext(budget=Budget(max_seconds=5))
    before = context.usage.time_elapsed_seconds
    graph = Graph("g")
    graph.add_step(FunctionNode("n", lambda context: context.usage.time_elapsed_seconds), "a")

    within = (await graph.execute(context))["a"]

    assert before == 0
    assert within > 0


async def test_the_program_that_type_checkers_read_works() -> None:
    """The type-checked program must also run."""
    assert await public_api.main() == {"one": 1, "two": 2}
