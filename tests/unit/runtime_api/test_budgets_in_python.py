"""Budgets of graphs in Python: threads, exact money, reservations and replaced budgets."""

import asyncio
import copy
import pickle
from dataclasses import replace
from decimal import Decimal
from typing import Any

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
from caseworker.core.budget.budget import Dimension
from tests.unit.runtime_api.functions import constant

CALL = {Dimension.API_CALLS: 1}


def side_by_side(count: int, work: Any, **settings: Any) -> Graph:
    graph = Graph("g", max_parallel=count)
    for number in range(count):
        graph.add_step(FunctionNode(str(number), work, **settings), f"s{number}")
    return graph


@pytest.mark.req("000/B1", "000/B5")
async def test_threads_that_charge_one_scope_are_granted_exactly_what_is_allowed() -> None:
    """Four threads ask for more than the limit, and exactly the limit is granted."""
    granted: list[int] = []

    def charges(context: ExecutionContext) -> None:
        mine = 0
        try:
            for number in range(3_000):
                if number % 3:
                    context.own_scope().charge(CALL)
                else:
                    context.own_scope().reserve(CALL).settle(CALL)
                mine += 1
        except BudgetExceededError:
            pass
        granted.append(mine)

    context = ExecutionContext(budget=Budget(max_api_calls=10_000))
    await side_by_side(4, charges, blocking=True).execute(context)

    assert sum(granted) == context.usage.api_calls == 10_000
    assert context.own_scope().reserved(Dimension.API_CALLS) == 0


async def test_what_threads_add_to_a_usage_is_all_counted() -> None:
    """``+=`` reads and writes, and another thread may run in between."""

    def adds(context: ExecutionContext) -> None:
        for _ in range(2_000):
            context.usage.tokens_used += 1
            context.usage.cost_dollars += 0.001

    context = ExecutionContext()
    await side_by_side(4, adds, blocking=True).execute(context)

    assert context.usage.tokens_used == 8_000
    assert context.usage.of(Dimension.COST_USD) == 8


@pytest.mark.req("000/B2")
async def test_money_that_is_added_as_floats_is_the_money_that_was_meant() -> None:
    """Three times 0.1 dollars fit into a limit of 0.3, and a fourth charge is refused."""
    graph = Graph("g")
    for number in range(4):
        graph.add_step(FunctionNode(str(number), spend), f"s{number}")
    context = ExecutionContext(budget=Budget(max_cost_dollars=0.3))

    with pytest.raises(BudgetExceededError):
        await graph.execute(context)

    assert context.usage.of(Dimension.COST_USD) == Decimal("0.3")


def spend(context: ExecutionContext) -> None:
    context.check_budget()
    context.usage.cost_dollars += 0.1


@pytest.mark.parametrize("cost", [-5, float("nan"), float("inf"), Decimal("NaN"), Decimal(-1)])
def test_costs_that_cannot_be_are_refused(cost: Any) -> None:
    """A negative cost would add budget, and NaN or infinity would bypass limits."""
    usage = ResourceUsage(cost_dollars=1)
    scope = ExecutionContext(budget=Budget(max_cost_dollars=1)).own_scope()

    with pytest.raises(ValueError, match="cost_usd"):
        ResourceUsage(cost_dollars=cost)
    with pytest.raises(ValueError, match="cost_usd"):
        usage.cost_dollars = cost
    for ask in (scope.charge, scope.reserve, scope.reserve({}).settle):
        with pytest.raises(ValueError, match="cost_usd"):
            ask({Dimension.COST_USD: cost})
    assert usage.of(Dimension.COST_USD) == 1
    assert scope.usage.of(Dimension.COST_USD) == scope.reserved(Dimension.COST_USD) == 0


@pytest.mark.req("000/B3")
async def test_stops_can_be_copied_and_pickled() -> None:
    """A process pool pickles its results; the copy has the same message and cause."""
    context = ExecutionContext(budget=Budget(max_steps=0))
    stopped = (await side_by_side(1, spend).run(context)).stop
    assert stopped is not None

    for stop in (stopped, CancelledError("enough", requested_by="ops")):
        for other in (copy.copy(stop), copy.deepcopy(stop), pickle.loads(pickle.dumps(stop))):  # noqa: S301
            assert (type(other), str(other)) == (type(stop), str(stop))
            assert other.cause == stop.cause
    restored = pickle.loads(pickle.dumps(stopped))  # noqa: S301
    assert restored.usage.steps_executed == 0
    assert restored.budget == context.budget


async def test_a_watcher_that_raises_keeps_the_stop_from_nobody() -> None:
    """A watcher that raises does not keep the stop from other watchers and the graph."""
    token, heard = CancellationToken(), list[str]()

    def raises() -> None:
        raise RuntimeError("kaput")

    async def cancels(context: ExecutionContext) -> None:
        with token.on_trip(raises), token.on_trip(lambda: heard.append("second")):
            token.cancel("enough")
            await asyncio.sleep(10)

    graph = Graph("g")
    graph.add_step(FunctionNode("n", cancels), "a")
    ran = await graph.run(ExecutionContext(cancellation=token))

    assert (ran.status, heard) == ("cancelled", ["second"])


@pytest.mark.parametrize("fails", [False, True])
async def test_what_a_step_has_reserved_and_not_settled_ends_with_it(fails: bool) -> None:
    """A step's open reservations end with it, so other steps get the budget."""
    left = []

    async def reserves(context: ExecutionContext) -> None:
        left.append(await context.reserve({Dimension.TOKENS: 80}))
        if fails:
            raise ValueError("no")

    async def needs_it(context: ExecutionContext) -> str:
        with await context.reserve({Dimension.TOKENS: 90}) as reservation:
            reservation.settle({Dimension.TOKENS: 10})
        return "done"

    graph = Graph("g")
    skip = ErrorPolicy(on_error="skip")
    graph.add_step(FunctionNode("a", reserves), "a", error_policy=skip)
    graph.add_step(FunctionNode("b", needs_it), "b", depends_on=["a"])
    context = ExecutionContext(budget=Budget(max_tokens=100))

    assert (await graph.execute(context))["b"] == "done"
    left[0].settle({Dimension.TOKENS: 5})
    assert context.usage.tokens_used == 15
    assert context.own_scope().reserved(Dimension.TOKENS) == 0


@pytest.mark.req("000/B5")
async def test_a_reservation_is_given_back_at_the_end_of_its_block() -> None:
    """The unused part is released when the block ends or raises; settled usage counts."""
    scope = ExecutionContext(budget=Budget(max_tokens=100)).own_scope()

    with scope.reserve({Dimension.TOKENS: 60}) as reservation:
        reservation.settle({Dimension.TOKENS: 7})
    with pytest.raises(ValueError, match="no"), scope.reserve({Dimension.TOKENS: 60}):
        raise ValueError("no")

    assert (scope.usage.tokens_used, scope.reserved(Dimension.TOKENS)) == (7, 0)


async def test_steps_side_by_side_wait_for_what_others_have_reserved() -> None:
    """Each step reserves most of the budget and uses little of it."""

    async def calls(context: ExecutionContext) -> None:
        with await context.reserve({Dimension.TOKENS: 80}) as reservation:
            await asyncio.sleep(0)
            reservation.settle({Dimension.TOKENS: 2})

    context = ExecutionContext(budget=Budget(max_tokens=100))
    await side_by_side(8, calls).execute(context)

    assert context.usage.tokens_used == 16


async def test_the_time_of_a_step_ends_its_wait_for_budget() -> None:
    """The budget it waits for is held for longer than the step's timeout."""
    released = asyncio.Event()

    async def holds(context: ExecutionContext) -> None:
        with await context.reserve({Dimension.TOKENS: 80}):
            await released.wait()

    async def waits(context: ExecutionContext) -> None:
        await context.reserve({Dimension.TOKENS: 80})

    async def then(context: ExecutionContext) -> None:
        released.set()

    graph = Graph("g", max_parallel=2)
    graph.add_step(FunctionNode("a", holds), "a")
    late = ErrorPolicy(on_error="skip", fallback_value="late", timeout_ms=1)
    graph.add_step(FunctionNode("b", waits), "b", error_policy=late)
    graph.add_step(FunctionNode("c", then), "c", depends_on=["b"])
    context = ExecutionContext(budget=Budget(max_tokens=100))

    assert (await graph.execute(context))["b"] == "late"
    assert len(context.own_scope().queue) == 0


@pytest.mark.req("000/B1")
async def test_a_budget_that_was_replaced_after_a_run_is_the_one_that_counts() -> None:
    """A new budget applies on the context or on a copy; earlier usage still counts."""
    graph = side_by_side(2, constant(1).fn)
    context = ExecutionContext(budget=Budget(max_steps=10))
    await graph.execute(context)

    context.budget = Budget(max_steps=3)
    assert (await graph.run(context)).status == "halted"
    assert context.usage.steps_executed == 3

    wider = replace(context, budget=Budget(max_steps=7))
    assert (await graph.run(wider)).status == "completed"
    fresh = replace(context, usage=ResourceUsage())
    assert (await graph.run(fresh)).status == "completed"
    assert fresh.usage.steps_executed == 2

    context.budget = None
    assert (await graph.run(context)).status == "completed"
    assert context.usage.steps_executed == 7
