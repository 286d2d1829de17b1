"""The limits that a budget accepts, and merging two budgets."""

from dataclasses import fields
from decimal import Decimal
from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError

from caseworker.core.budget.budget import Budget, Dimension, json_name

WHOLE = [
    "max_tokens",
    "max_steps",
    "max_api_calls",
    "max_llm_calls_small",
    "max_llm_calls_big",
    "max_tool_calls",
    "max_turns",
]
FRACTIONS = ["max_time_seconds", "max_cost_dollars"]


@pytest.mark.req("000/B1")
def test_a_budget_without_limits_is_unlimited() -> None:
    """A budget without arguments has no limits."""
    assert Budget().limits() == {}


@pytest.mark.req("000/B1")
@pytest.mark.parametrize("name", [*WHOLE, *FRACTIONS])
def test_every_limit_may_be_zero_or_more(name: str) -> None:
    """Zero is a valid limit and does not mean unlimited."""
    for limit in (0, 1, 10**9):
        assert list(Budget(**{name: limit}).limits().values()) == [limit]


@pytest.mark.req("000/B1")
@pytest.mark.parametrize("name", [*WHOLE, *FRACTIONS])
@pytest.mark.parametrize(
    "limit",
    [-1, float("nan"), float("inf"), -float("inf"), True, False, "5", [], 10**400],
    ids=lambda limit: repr(limit)[:8],
)
def test_what_is_no_limit_is_refused_by_name(name: str, limit: Any) -> None:
    """A negative, infinite, boolean, textual or oversized limit is rejected by name."""
    with pytest.raises(ValueError, match=name):
        Budget(**{name: limit})


@pytest.mark.req("000/B1")
@pytest.mark.parametrize("name", WHOLE)
def test_what_is_counted_is_limited_by_whole_numbers(name: str) -> None:
    """A counted limit must be an integer; half a call is rejected."""
    half: Any = 1.5
    with pytest.raises(ValueError, match=f"{name} must be a whole number"):
        Budget(**{name: half})


@pytest.mark.req("000/B1")
@pytest.mark.parametrize("limit", ["NaN", "sNaN", "-sNaN", "Infinity", "-0.01"])
def test_money_that_is_no_limit_is_refused(limit: str) -> None:
    """A Decimal cost limit that is NaN, infinite or negative is rejected."""
    with pytest.raises(ValueError, match="max_cost_dollars"):
        Budget(max_cost_dollars=Decimal(limit))


def test_seconds_are_no_money() -> None:
    """A Decimal time limit is rejected, because it cannot be subtracted from a float clock."""
    limit: Any = Decimal(5)
    with pytest.raises(ValueError, match="max_time_seconds"):
        Budget(max_time_seconds=limit)


def test_the_names_of_json_are_accepted_too() -> None:
    """Both names of a limit are accepted, but only one of them at a time."""
    budget = Budget(max_seconds=5, max_cost_usd=0.1)

    assert budget == Budget(max_time_seconds=5, max_cost_dollars=Decimal("0.1"))
    assert (budget.max_seconds, budget.max_cost_usd) == (5, Decimal("0.1"))
    with pytest.raises(ValueError, match="max_time_seconds and max_seconds are the same limit"):
        Budget(max_time_seconds=1, max_seconds=1)


def test_a_budget_is_shown_under_the_names_of_json() -> None:
    """Every limit is a JSON number or null, so that clients see all dimensions."""
    shown = Budget(max_seconds=5, max_cost_usd=Decimal("0.1"), max_turns=0).to_json()

    assert {name: limit for name, limit in shown.items() if limit is not None} == {
        "max_seconds": 5,
        "max_cost_usd": 0.1,
        "max_turns": 0,
    }
    assert isinstance(shown["max_cost_usd"], float)
    assert shown.keys() == {json_name(field.name) for field in fields(Budget)}


def test_each_limit_of_a_budget_is_a_row_of_the_table_of_dimensions() -> None:
    """The message about an exceeded limit, its JSON name and its unit come from the row."""
    limited = {each.field: each for each in Dimension if each.headline}

    assert limited.keys() == {field.name for field in fields(Budget)}
    assert {each for each in Dimension if each.interrupts} == {Dimension.SECONDS}
    for name, dimension in limited.items():
        assert Budget(**{name: 3}).limits() == {dimension: 3}
        assert json_name(name) == f"max_{dimension}"


def test_a_budget_is_read_from_json_by_its_annotations() -> None:
    """Budgets are parsed strictly: an unknown name or an invalid value is rejected by name."""
    reader = TypeAdapter(Budget)

    assert reader.validate_json('{"max_seconds": 5, "max_cost_usd": 0.1}') == Budget(
        max_time_seconds=5.0, max_cost_dollars=Decimal("0.1")
    )
    for name, limit in {
        "max_time_seconds": 5,
        "max_tokens": True,
        "max_steps": "5",
        "max_turns": -1,
        "max_cost_usd": float("nan"),
        "max_seconds": float("inf"),
        "max_tool_calls": 1.5,
    }.items():
        with pytest.raises(ValidationError) as refused:
            reader.validate_python({name: limit})
        assert [error["loc"] for error in refused.value.errors()] == [(name,)]


def test_money_is_exact() -> None:
    """A cost limit of 0.1 dollars is exactly a tenth of a dollar."""
    assert Budget(max_cost_dollars=0.1).limits() == {Dimension.COST_USD: Decimal("0.1")}


def test_of_two_budgets_the_smaller_limit_counts() -> None:
    """Each dimension keeps the smaller limit, and any limit, even zero, replaces an absent one."""
    caller = Budget(max_tokens=100, max_steps=5, max_cost_dollars=0.5, max_tool_calls=7)
    ceiling = Budget(max_tokens=10, max_steps=9, max_cost_dollars=Decimal("0.25"), max_turns=0)

    assert caller.merged_with(ceiling) == Budget(
        max_tokens=10,
        max_steps=5,
        max_cost_dollars=Decimal("0.25"),
        max_tool_calls=7,
        max_turns=0,
    )
