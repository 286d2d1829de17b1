"""Limits, stops and policies of graphs in Python, with the failures known from seed 000."""

import asyncio

import pytest

from caseworker import (
    Budget,
    BudgetExceededError,
    CancellationToken,
    CancelledError,
    ErrorPolicy,
    ExecutionContext,
    FunctionNode,
    Graph,
    ResourceUsage,
)
from caseworker.engine import concurrency
from tests.unit.runtime_api.functions import constant


@pytest.mark.req("000/B1", "000/B3")
@pytest.mark.parametrize("limit", [0, 1, 2, 3])
async def test_a_limit_of_steps_is_exact_and_keeps_what_was_done(limit: int) -> None:
    """A limit of 0 allows no step, and 3 steps fit a limit of 3."""
    graph = Graph("g")
    for index, name in enumerate("abc"):
        graph.add_step(constant(index), name)
    context = ExecutionContext(budget=Budget(max_steps=limit))

    if limit == 3:
        assert await graph.execute(context) == {"a": 0, "b": 1, "c": 2}
        return
    with pytest.raises(BudgetExceededError) as stopped:
        await graph.execute(context)
    assert stopped.value.partial_results == dict(list({"a": 0, "b": 1, "c": 2}.items())[:limit])
    assert stopped.value.usage is context.usage
    assert stopped.value.budget is context.budget
    assert context.usage.steps_executed == limit


@pytest.mark.req("000/B3")
async def test_run_tells_how_a_graph_ended_and_never_raises() -> None:
    """run() returns the outcome with all finished results instead of raising."""

    def fails(context: ExecutionContext) -> None:
        raise ValueError("no")

    graph = Graph("g")
    graph.add_step(constant(1), "a")
    graph.add_step(FunctionNode("n", fails), "b", depends_on=["a"])
    graph.add_step(constant(3), "c", depends_on=["b"])
    ran = await graph.run()

    assert (ran.status, ran.results, ran.stop) == ("failed", {"a": 1}, None)
    assert isinstance(ran.error, ValueError)
    assert ran.steps == {"a": "completed", "b": "failed", "c": "not_started"}
    assert ran.calls.snapshot()["aggregates"]["max_depth"] == 1
    with pytest.raises(ValueError, match="no"):
        await graph.execute()


@pytest.mark.req("000/B4", "000/B5")
async def test_what_nodes_spend_counts_in_every_budget_around_them() -> None:
    """A nested graph has a limit of 1000 tokens inside one of 10000."""

    def spends(context: ExecutionContext) -> int:
        context.check_budget()
        context.usage.tokens_used += 400
        return context.usage.tokens_used

    inner = Graph("inner")
    for name in "abcd":
        inner.add_step(FunctionNode("spends", spends), name)
    outer = Graph("outer")
    outer.add_step(inner, "inner", sub_budget=Budget(max_tokens=1000))
    context = ExecutionContext(budget=Budget(max_tokens=10_000))

    with pytest.raises(BudgetExceededError) as stopped:
        await outer.execute(context)

    assert (stopped.value.cause.scope, stopped.value.cause.dimension) == ("run/inner", "tokens")
    assert context.usage.tokens_used == 1200
    assert stopped.value.partial_results == {"inner": {"a": 400, "b": 800, "c": 1200}}


@pytest.mark.req("000/B5")
async def test_a_context_can_open_a_sub_budget_itself() -> None:
    """The limit that is reached first applies."""
    context = ExecutionContext(budget=Budget(max_api_calls=3))
    child = context.with_sub_budget(Budget(max_api_calls=2))
    child.usage.api_calls += 2

    with pytest.raises(BudgetExceededError) as own:
        child.check_budget()
    context.check_budget()
    context.usage.api_calls += 1
    with pytest.raises(BudgetExceededError) as above:
        context.with_sub_budget(Budget(max_api_calls=9)).check_budget()

    assert own.value.cause.scope == "run/sub_budget"
    assert above.value.cause.scope == "run"
    assert context.usage.api_calls == 3


@pytest.mark.req("000/C1", "000/C3")
@pytest.mark.parametrize("from_thread", [False, True])
async def test_a_cancel_reaches_work_in_flight(from_thread: bool) -> None:
    """Any thread may cancel, and finished results are kept."""
    token, begun = CancellationToken(), asyncio.Event()

    async def hangs(context: ExecutionContext) -> None:
        begun.set()
        await asyncio.sleep(3600)

    graph = Graph("g")
    graph.add_step(constant(1), "a")
    graph.add_step(FunctionNode("hangs", hangs), "b", depends_on=["a"])
    running = asyncio.create_task(graph.execute(ExecutionContext(cancellation=token)))
    await begun.wait()
    if from_thread:
        await asyncio.to_thread(token.cancel, "enough")
    else:
        token.cancel("enough")

    with pytest.raises(CancelledError, match="enough") as stopped:
        await running
    assert stopped.value.partial_results == {"a": 1}


@pytest.mark.req("000/C3")
async def test_steps_that_wait_for_nothing_do_not_keep_the_loop_from_a_stop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A cancellation, a timer or another run gets control between steps."""
    monkeypatch.setattr(concurrency, "BUSY_SECONDS", 0.0)
    graph, token = Graph("g"), CancellationToken()
    for index in range(50):
        graph.add_step(constant(index), f"s{index}")
    asyncio.get_running_loop().call_later(0, token.cancel)

    with pytest.raises(CancelledError) as stopped:
        await graph.execute(ExecutionContext(cancellation=token))
    assert 0 < len(stopped.value.partial_results) < 50


@pytest.mark.req("000/E2")
async def test_a_node_cannot_swallow_a_stop() -> None:
    """In the source document, ``except Exception`` in a node hid exceeded limits."""

    def swallows(context: ExecutionContext) -> str:
        try:
            context.check_budget()
        except Exception:
            return "swallowed"
        return "nothing happened"

    graph = Graph("g")
    graph.add_step(
        FunctionNode("n", swallows), "a", error_policy=ErrorPolicy(on_error="skip", retry_count=2)
    )
    context = ExecutionContext(budget=Budget(max_tokens=5), usage=ResourceUsage(tokens_used=5))

    with pytest.raises(BudgetExceededError):
        await graph.execute(context)
