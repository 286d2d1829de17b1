"""Python functions as nodes, in graphs built in Python and in JSON graphs."""

import asyncio
import contextvars
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from caseworker.core.budget.budget import Budget
from caseworker.core.budget.stops import CancelledError
from caseworker.core.graph.graph import Channel, Edge, GraphStep, StepGraph
from caseworker.engine.context import ExecutionContext
from caseworker.engine.driver import GraphExecution
from caseworker.engine.prepared import BoundNode, PreparedGraph, PreparedStep
from caseworker.engine.report import GraphOutcome
from caseworker.nodes.function import BlockingPool, ContextNode, FunctionNode
from tests.unit.nodes.world import NodeRun, flow, function, graph, settle_down, step


async def run_python(
    works: Mapping[str, ContextNode], *edges: tuple[str, str], **settings: Any
) -> GraphOutcome:
    """Execute a graph that was built in Python."""
    steps = {name: GraphStep(id=name, type="python") for name in works}
    joined = tuple(Edge(source=a, target=b, channel=Channel.FLOW) for a, b in edges)
    prepared = PreparedGraph(
        StepGraph(id="g", steps=tuple(steps.values()), edges=joined),
        {name: PreparedStep(step=steps[name], work=BoundNode(works[name])) for name in works},
    )
    return await GraphExecution(prepared, {}, NodeRun(**settings).context()).run()


def node(fn: Any, step_input: Any = None, **settings: Any) -> ContextNode:
    return ContextNode(FunctionNode("f", fn, **settings), step_input)


def value_of(outcome: GraphOutcome, step_id: str) -> Any:
    if outcome.error is not None:
        raise outcome.error
    return outcome.steps[step_id].outputs["default"]


async def test_a_function_gets_its_input_and_gives_the_output() -> None:
    """The function may return a value or an awaitable."""

    async def later(context: ExecutionContext) -> Any:
        await asyncio.sleep(0)
        return context.input + 2

    def awaitable(context: ExecutionContext) -> Any:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        future.set_result(context.input + 3)
        return future

    for fn, expected in ((lambda c: c.input + 1, 11), (later, 12), (awaitable, 13)):
        assert value_of(await run_python({"a": node(fn, 10)}), "a") == expected
        assert await FunctionNode("f", fn).execute(ExecutionContext(input=10)) == expected


@pytest.mark.req("000/B4", "004/context")
async def test_a_function_sees_its_run_as_seed_000_has_it() -> None:
    """The context holds the caller's session and results, the budget, the token and the path."""
    seen: list[ExecutionContext] = []
    session, budget = object(), Budget(max_steps=5)
    caller = ExecutionContext(session=session, upstream={"earlier": 1, "a": "overruled"})

    await run_python(
        {"a": node(lambda c: "A"), "b": node(lambda c: "B"), "c": node(seen.append, "in")},
        ("a", "c"),
        ("b", "c"),
        services={ExecutionContext: caller},
        budget=budget,
    )

    (context,) = seen
    assert context.session is session
    assert (context.input, context.budget) == ("in", budget)
    assert context.upstream == {"earlier": 1, "a": "A", "b": "B"}
    assert context.usage.steps_executed == 3
    assert context.flow is not None
    assert (context.flow.node_id, context.flow.scope) == ("c", context.scope)
    assert context.cancellation is context.flow.token


async def test_a_step_sees_only_what_leads_to_it() -> None:
    """Outputs of unconnected steps are not visible."""
    outcome = await run_python(
        {name: node(lambda c: sorted(c.upstream)) for name in "abc"}, ("a", "b")
    )

    assert [value_of(outcome, name) for name in "abc"] == [[], ["a"], []]


async def test_any_node_of_seed_000_can_be_adapted() -> None:
    """The node needs an ID and an `execute`, which may or may not be async."""

    class Plain:
        id = "plain"

        def execute(self, context: ExecutionContext) -> Any:
            return {"got": context.input}

    class Later(Plain):
        async def execute(self, context: ExecutionContext) -> Any:
            return [context.input]

    outcome = await run_python({"a": ContextNode(Plain(), 1), "b": ContextNode(Later(), 2)})

    assert (value_of(outcome, "a"), value_of(outcome, "b")) == ({"got": 1}, [2])


class _Doubled(FunctionNode):
    async def execute(self, context: ExecutionContext) -> Any:
        return 2 * await super().execute(context)


class _Shouting(FunctionNode):
    def begin(self, context: ExecutionContext) -> Any:
        return f"{super().begin(context)}!"


async def test_a_kind_of_function_node_executes_as_it_says() -> None:
    """A subclass may override any of the methods."""
    outcome = await run_python(
        {
            "a": ContextNode(_Doubled("a", lambda _: 21)),
            "b": ContextNode(_Shouting("b", lambda _: "yes")),
        }
    )

    assert (value_of(outcome, "a"), value_of(outcome, "b")) == (42, "yes!")


async def test_stops_and_failures_of_a_function_pass_as_they_are() -> None:
    """Stops and exceptions of a function reach the engine unchanged."""

    def stop(context: ExecutionContext) -> None:
        raise CancelledError("enough")

    def fail(context: ExecutionContext) -> None:
        raise KeyError("no")

    assert isinstance((await run_python({"a": node(stop)})).stop, CancelledError)
    assert isinstance((await run_python({"a": node(fail)})).error, KeyError)


async def test_a_blocking_function_runs_in_a_thread_of_the_pool() -> None:
    """The thread gets the caller's context variables, and the event loop is not blocked."""
    tenant: contextvars.ContextVar[str] = contextvars.ContextVar("tenant")
    tenant.set("acme")
    let_go = threading.Event()

    def fn(context: ExecutionContext) -> Any:
        assert let_go.wait(120)
        return threading.current_thread().name, tenant.get()

    running = asyncio.create_task(run_python({"a": node(fn, blocking=True)}))
    await settle_down()
    let_go.set()

    name, said = value_of(await running, "a")
    assert name.startswith("blocking")
    assert said == "acme"


async def test_a_blocking_function_works_outside_of_a_run_too() -> None:
    """Without a run, the function uses a thread of the event loop's executor."""
    here = threading.current_thread().name
    blocking = FunctionNode("f", lambda c: threading.current_thread().name, blocking=True)

    assert await blocking.execute(ExecutionContext()) != here


async def test_cancelling_a_blocking_function_does_not_wait_for_its_thread() -> None:
    """The thread's late result is dropped, and queued functions never start."""
    pool, let_go, begun = BlockingPool(1), threading.Event(), threading.Event()
    ended: list[str] = []

    def slow() -> str:
        begun.set()
        assert let_go.wait(120)
        ended.append("slow")
        return "late"

    first = asyncio.create_task(pool.run(slow))
    second = asyncio.create_task(pool.run(ended.append, "second"))
    await asyncio.to_thread(begun.wait, 10)

    for task in (first, second):
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert ended == []

    let_go.set()
    assert await pool.run(lambda: "the pool goes on") == "the pool goes on"
    assert ended == ["slow"]
    pool.close()


async def test_a_pool_has_no_more_threads_than_it_may() -> None:
    """A pool that uses all its threads queues further functions."""
    pool, barrier, most = BlockingPool(2), threading.Barrier(2), 0
    lock, inside = threading.Lock(), 0

    def work() -> None:
        nonlocal inside, most
        with lock:
            inside += 1
            most = max(most, inside)
        barrier.wait(120)
        with lock:
            inside -= 1

    async with asyncio.TaskGroup() as group:
        for _ in range(6):
            group.create_task(pool.run(work))

    assert most == 2
    pool.close()


async def test_a_function_that_raises_stop_iteration_in_a_thread_fails() -> None:
    """A future cannot hold StopIteration; without a conversion the caller would wait forever."""

    def fn(context: ExecutionContext) -> None:
        raise StopIteration

    assert isinstance((await run_python({"a": node(fn, blocking=True)})).error, RuntimeError)


def test_a_coroutine_function_is_not_blocking() -> None:
    """A thread would only create the coroutine without running it."""

    async def fn(context: ExecutionContext) -> None: ...

    with pytest.raises(ValueError, match="coroutine"):
        FunctionNode("f", fn, blocking=True)


async def test_a_graph_names_a_registered_function_and_gives_it_arguments() -> None:
    """The arguments are rendered JSON, or the default input."""

    @function("show")
    def show(context: ExecutionContext) -> Any:
        return [context.input, dict(context.upstream)]

    of = graph(
        step("a", "function", {"name": "show"}),
        step("b", "function", {"name": "show", "args": {"first": "${default.0}"}}),
        flow("a", "b"),
    )

    assert await NodeRun(functions=[show]).value(of, "b", default=7) == [
        {"first": 7},
        {"a": [7, {}]},
    ]


async def test_a_persistent_function_is_used_by_one_run_at_a_time() -> None:
    """The lock is held during an attempt (seed 000, P3)."""
    inside, most = 0, 0

    @function("ledger", persistent=True)
    async def ledger(context: ExecutionContext) -> None:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await settle_down()
        inside -= 1

    of = graph(step("a", "function", {"name": "ledger"}))
    async with asyncio.TaskGroup() as group:
        for _ in range(3):
            group.create_task(NodeRun(functions=[ledger]).run(of))

    assert most == 1
    assert ledger.lock is not None
    assert not ledger.lock.locked
