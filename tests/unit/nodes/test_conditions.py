"""Conditions are plain data; evaluating one neither fails nor runs code."""

import json
import operator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from caseworker.nodes.router import Condition, Work, same

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | st.text("ab1", max_size=2),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab", max_size=1), inner),
    max_leaves=4,
)


def met(op: str, found: Any, *value: Any) -> bool:
    """Return whether a value satisfies a comparison."""
    return condition(path="default", op=op, **({"value": value[0]} if value else {})).holds(
        {"default": found}, Work()
    )


def condition(**data: Any) -> Condition:
    return Condition.model_validate(data)


@pytest.mark.parametrize(
    ("op", "found", "value", "expected"),
    [
        ("eq", 1, 1.0, True),
        ("eq", True, 1, False),
        ("eq", [1, {"a": None}], [1.0, {"a": None}], True),
        ("eq", [True], [1], False),
        ("eq", {"a": 1}, {"a": 1, "b": 2}, False),
        ("eq", None, False, False),
        ("ne", "one", 1, True),
        ("ne", "a", "a", False),
        ("gt", 2, 1.5, True),
        ("gt", "b", "a", True),
        ("gt", "two", 1, False),
        ("le", "two", 1, False),
        ("ge", True, 0, False),
        ("lt", None, 1, False),
        ("lt", 1, 1, False),
        ("le", 1, 1, True),
        ("in", 1, [2, 1.0], True),
        ("in", True, [1], False),
        ("in", "b", "abc", True),
        ("in", 1, "123", False),
        ("contains", [1, "a"], "a", True),
        ("contains", "abc", "bc", True),
        ("contains", {"k": 1}, "k", True),
        ("contains", "123", 1, False),
        ("contains", 5, 5, False),
        ("starts_with", "abc", "ab", True),
        ("starts_with", ["ab"], "ab", False),
        ("ends_with", "abc", "bc", True),
        ("ends_with", "abc", "ab", False),
    ],
)
def test_comparisons_know_the_kinds_of_json(op: str, found: Any, value: Any, expected: Any) -> None:
    """Values of different kinds do not match, and a boolean is not a number."""
    assert met(op, found, value) is expected


@pytest.mark.parametrize(
    ("op", "found", "expected"),
    [
        ("exists", None, True),
        ("missing", None, False),
        ("is_true", True, True),
        ("is_true", 1, False),
    ],
)
def test_some_conditions_need_no_value(op: str, found: Any, expected: bool) -> None:
    """`exists` is true for null, and `is_true` only for true."""
    assert met(op, found) is expected


def test_a_value_that_is_not_there_meets_nothing_but_missing() -> None:
    """A missing value does not match `ne` either."""
    ops = {"eq": 1, "ne": 1, "gt": 1, "in": [1], "contains": 1, "starts_with": "", "exists": None}
    for op, value in ops.items():
        given_value = {} if op == "exists" else {"value": value}
        assert not condition(path="other.x", op=op, **given_value).holds({"default": 1}, Work()), op
    assert condition(path="other.x", op="missing").holds({"default": 1}, Work())


def test_conditions_are_joined_by_all_any_and_not() -> None:
    """The operators all, any and not nest to any depth."""
    joined = condition(
        all=[
            {"path": "n", "op": "gt", "value": 1},
            {"any": [{"path": "n", "op": "lt", "value": 5}, {"path": "big", "op": "is_true"}]},
            {"not": {"path": "n", "op": "eq", "value": 3}},
        ]
    )

    assert [joined.holds({"n": n}, Work()) for n in (1, 2, 3, 4, 6)] == [
        False,
        True,
        False,
        True,
        False,
    ]
    assert joined.holds({"n": 6, "big": True}, Work())


@given(JSON, JSON)
def test_no_two_values_break_a_comparison(found: Any, value: Any) -> None:
    """Every operator accepts every pair of values without an exception."""
    for op in ("eq", "ne", "gt", "ge", "lt", "le", "in", "contains", "starts_with", "ends_with"):
        try:
            checked = condition(path="default", op=op, value=value)
        except ValidationError:
            continue
        assert checked.holds({"default": found}, Work()) in (True, False)
    assert same(found, value, Work()) == (not met("ne", found, value))


@given(JSON)
def test_everything_equals_its_copy(value: Any) -> None:
    """A value equals its copy, whatever the notation of its numbers."""
    assert same(value, json.loads(json.dumps(value)), Work())


@given(st.integers(-3, 3) | st.floats(-3, 3), st.integers(-3, 3) | st.floats(-3, 3))
def test_numbers_are_ordered_as_numbers(found: float, value: float) -> None:
    """Integers and decimals compare by value."""
    for op in ("gt", "ge", "lt", "le"):
        assert met(op, found, value) is getattr(operator, op)(found, value)


@pytest.mark.parametrize(
    "wrong",
    [
        {},
        {"path": "a"},
        {"op": "eq", "value": 1},
        {"path": "a", "op": "eq"},
        {"path": "a", "op": "is_true", "value": True},
        {"path": "a", "op": "gt", "value": True},
        {"path": "a", "op": "gt", "value": [1]},
        {"path": "a", "op": "in", "value": 1},
        {"path": "a", "op": "starts_with", "value": 1},
        {"path": "a", "op": "matches", "value": "(a+)+"},
        {"path": "a", "op": "eq", "value": 1, "not": {"path": "a", "op": "exists"}},
        {"all": []},
        {"all": [{"path": "a", "op": "exists"}], "any": [{"path": "a", "op": "exists"}]},
        {"not": [{"path": "a", "op": "exists"}]},
    ],
)
def test_what_is_no_condition_is_refused(wrong: dict[str, Any]) -> None:
    """The graph's validation rejects an invalid condition."""
    with pytest.raises(ValidationError):
        condition(**wrong)


def test_conditions_nested_without_end_are_refused_and_do_not_break() -> None:
    """The nesting limit is below Python's recursion limit."""
    nested: dict[str, Any] = {"path": "a", "op": "exists"}
    for _ in range(5000):
        nested = {"not": nested}
    with pytest.raises(ValidationError):
        Condition.model_validate(nested)


def test_the_deepest_condition_that_is_accepted_can_be_met() -> None:
    """Every condition that validation accepts can be evaluated."""
    nested: dict[str, Any] = {"path": "a", "op": "exists"}
    deepest = condition(**nested)
    for _ in range(300):
        nested = {"not": nested}
        try:
            deepest = condition(**nested)
        except ValidationError:
            break
    assert deepest.holds({"a": 1}, Work()) in (True, False)


@pytest.mark.parametrize(
    ("found", "op", "value", "holds"),
    [
        ("144", "gt", 100, True),
        ("144", "eq", 144, True),
        ("144.0", "eq", 144, True),
        ("144", "ne", 144, False),
        ("99.5", "lt", 100, True),
        ("1e3", "ge", 1000, True),
        ("many", "gt", 1, False),
        ("NaN", "lt", 1, False),
        ("Infinity", "gt", 1, False),
        ("9" * 2000, "gt", 1, False),
        ("144", "eq", "144.0", False),
        ("0.1", "eq", 0.1, True),
        ("0.1", "ge", 0.1, True),
        ("0.3", "le", 0.3, True),
        ("0.1", "ne", 0.1, False),
        ("12345678901234567891", "gt", 12345678901234567890, True),
        (144, "eq", "144", False),
        (True, "eq", 1, False),
    ],
)
def test_a_text_that_is_a_number_counts_as_one_beside_a_number(
    found: object, op: str, value: object, holds: bool
) -> None:
    """The calculator returns exact results as texts. Two texts are compared as texts."""
    condition = Condition.model_validate({"path": "default.value", "op": op, "value": value})

    assert condition.holds({"default": {"value": found}}, Work()) is holds
