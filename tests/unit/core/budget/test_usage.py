"""Resource usage and its check against a budget."""

from decimal import Decimal

import pytest

from caseworker.core.budget.budget import Budget, Dimension, Unit
from caseworker.core.budget.stops import Stop, StopKind
from caseworker.core.budget.usage import (
    BudgetExceededError,
    Charge,
    ResourceUsage,
)

SPENT: dict[str, tuple[Charge, str]] = {
    "max_tokens": ({Dimension.TOKENS: 10}, "The run's token budget is spent: 10 used, limit 10"),
    "max_steps": ({Dimension.STEPS: 10}, "Step limit exceeded: 10 used, limit 10"),
    "max_api_calls": ({Dimension.API_CALLS: 10}, "API call limit exceeded: 10 used, limit 10"),
    "max_cost_dollars": (
        {Dimension.COST_USD: Decimal(10)},
        "Cost limit exceeded: $10 used, limit $10",
    ),
    "max_llm_calls_small": (
        {Dimension.LLM_CALLS_SMALL: 10},
        "Small-tier LLM call limit exceeded: 10 used, limit 10",
    ),
    "max_llm_calls_big": (
        {Dimension.LLM_CALLS_BIG: 10},
        "Big-tier LLM call limit exceeded: 10 used, limit 10",
    ),
    "max_tool_calls": ({Dimension.TOOL_CALLS: 10}, "Tool call limit exceeded: 10 used, limit 10"),
    "max_turns": ({Dimension.TURNS: 10}, "Turn limit exceeded: 10 used, limit 10"),
}


class SetClock:
    """A clock that returns the seconds a test sets."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.req("000/B2")
@pytest.mark.parametrize("name", SPENT)
def test_a_limit_that_is_used_up_exactly_counts_as_exceeded(name: str) -> None:
    """An exhausted limit counts as exceeded, because the check precedes a further charge."""
    charge, reason = SPENT[name]
    usage = ResourceUsage()
    usage.add(charge)

    assert usage.exceeds(Budget(**{name: 11})) == (False, None)
    assert usage.exceeds(Budget(**{name: 10})) == (True, reason)
    assert usage.exceeds(Budget(**{name: 9}))[0]


@pytest.mark.req("000/B1", "000/B2")
@pytest.mark.parametrize("name", [*SPENT, "max_time_seconds"])
def test_a_limit_of_zero_is_exceeded_before_anything_is_spent(name: str) -> None:
    """A limit of zero allows nothing; the check of seed 000 treated it as unlimited."""
    assert ResourceUsage().exceeds(Budget(**{name: 0}))[0]


@pytest.mark.req("000/B1", "000/B2")
def test_without_a_limit_nothing_is_exceeded() -> None:
    """A budget without limits is never exceeded."""
    usage = ResourceUsage(10**9, 10**9, 10**9, 10**9, before_seconds=1e9)

    assert usage.exceeds(Budget()) == (False, None)


@pytest.mark.req("000/B2")
def test_time_is_measured_with_a_clock_that_nobody_corrects() -> None:
    """Elapsed time is monotonic and includes earlier executions; the start time has a zone."""
    clock = SetClock()
    usage = ResourceUsage(before_seconds=5, clock=clock)
    budget = Budget(max_time_seconds=7.5)

    clock.now += 2.4
    assert usage.time_elapsed_seconds == pytest.approx(7.4)
    assert not usage.exceeds(budget)[0]

    clock.now += 0.1
    assert usage.exceeds(budget) == (True, "Time limit exceeded: 7.5s used, limit 7.5s")
    assert usage.start_time.tzinfo is not None


@pytest.mark.req("000/B2")
def test_a_node_may_count_what_it_used_itself() -> None:
    """A node may change the counters of seed 000 directly."""
    usage = ResourceUsage(tokens_used=1, steps_executed=2, api_calls=3, cost_dollars=0.1)

    usage.tokens_used += 10
    usage.steps_executed += 10
    usage.api_calls += 10
    usage.cost_dollars += 0.2

    assert (usage.tokens_used, usage.steps_executed, usage.api_calls) == (11, 12, 13)
    assert usage.cost_dollars == pytest.approx(0.3)
    assert isinstance(usage.of(Dimension.COST_USD), Decimal)


def test_money_adds_up_exactly() -> None:
    """Ten charges of 10 cents add up to exactly one dollar."""
    usage = ResourceUsage()
    for _ in range(10):
        usage.add({Dimension.COST_USD: Decimal("0.1")})

    assert usage.of(Dimension.COST_USD) == 1
    assert usage.exceeds(Budget(max_cost_dollars=1)) == (
        True,
        "Cost limit exceeded: $1 used, limit $1",
    )


def test_usage_is_shown_as_json_numbers() -> None:
    """Cost and seconds become JSON fractions, and counts stay integers."""
    clock = SetClock()
    usage = ResourceUsage(api_calls=2, cost_dollars=Decimal("0.25"), clock=clock)
    usage.add({Dimension.TOOL_CALLS: 3})
    clock.now += 1.23456

    assert usage.to_dict() == {
        "tokens": 0,
        "steps": 0,
        "api_calls": 2,
        "cost_usd": 0.25,
        "tokens_estimated": 0,
        "cost_usd_estimated": 0.0,
        "tool_calls": 3,
        "seconds": 1.235,
    }


@pytest.mark.req("000/B3")
def test_the_error_carries_usage_budget_and_reason() -> None:
    """The error has the fields of seed 000, plus a cause for the clients of the service."""
    usage, budget = ResourceUsage(api_calls=3), Budget(max_api_calls=3)

    error = BudgetExceededError(
        usage, budget, "No more calls.", dimension=Dimension.API_CALLS, scope="run"
    )
    usage.api_calls += 1

    assert (error.usage, error.budget, error.reason) == (usage, budget, "No more calls.")
    assert str(error) == "No more calls."
    assert error.cause.to_dict() == {
        "kind": "budget",
        "dimension": "api_calls",
        "scope": "run",
        "limit": 3,
        "used": 3,
        "reason": "No more calls.",
    }


@pytest.mark.req("000/B3")
def test_the_error_of_seed_000_needs_no_more_than_three_arguments() -> None:
    """The error can be created without scope and dimension, as in seed 000."""
    error = BudgetExceededError(ResourceUsage(), Budget(), "Enough.")

    assert isinstance(error, Stop)
    assert not isinstance(error, Exception)
    assert error.cause.kind is StopKind.BUDGET


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        ("0.0000000", "$0"),
        ("0.0575510", "$0.057551"),
        ("1.00", "$1"),
        ("100", "$100"),
        ("1E+3", "$1000"),
        ("0.0000001", "$0.0000001"),
    ],
)
def test_a_cost_has_no_trailing_zeros(amount: str, text: str) -> None:
    """The amounts of one message would otherwise have different numbers of digits."""
    assert Unit.US_DOLLARS.text(Decimal(amount)) == text
