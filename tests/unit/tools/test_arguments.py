"""Arguments are validated against the tool's schema, and messages say how to fix them."""

from collections.abc import Mapping
from typing import Any

import pytest

from caseworker.tools.arguments import ArgumentCheck, UnfitSchemaError
from caseworker.tools.ports import ToolSpec
from caseworker_cases.tools.calculator import Calculator
from caseworker_cases.tools.calendar import Calendar
from caseworker_cases.tools.respond import Respond


def check_of(parameters: Mapping[str, Any]) -> ArgumentCheck:
    """Return the check of a tool with the given schema."""
    return ArgumentCheck(ToolSpec(name="sample", description="A sample.", parameters=parameters))


def check(**properties: Any) -> ArgumentCheck:
    """Return the check of a tool that requires all of these arguments."""
    schema = {
        "type": "object",
        "additionalProperties": False,
        "required": list(properties),
        "properties": properties,
    }
    return check_of(schema)


@pytest.mark.parametrize(
    ("args", "told"),
    [
        ({}, "'text' is missing: add it."),
        ({"text": "a", "more": 1}, "'more' is not known (the tool takes text): leave it out."),
        ({"text": 5}, "'text' must be of type string: change it."),
        ({"text": None}, "'text' must be of type string: change it."),
        ({"text": "abcd"}, "longer than 3 characters"),
    ],
)
def test_a_problem_names_the_argument_and_what_to_do(args: dict[str, Any], told: str) -> None:
    """A model can correct its plan from the message alone."""
    problem = check(text={"type": "string", "maxLength": 3}).problem(args)

    assert problem is not None
    assert told in problem


@pytest.mark.parametrize(
    ("form", "shown", "foreign"),
    [
        ("date", "a date written YYYY-MM-DD", False),
        ("date-time", "a date and time written YYYY-MM-DDThh:mm:ssZ", False),
        ("time", "a time written hh:mm:ssZ", False),
        ("date", "a date written YYYY-MM-DD", True),
        (
            "date-time",
            "a date and time written YYYY-MM-DDThh:mm:ss, with or without a zone",
            True,
        ),
        ("time", "a time written hh:mm:ss, with or without a zone", True),
        ("duration", "a duration such as PT5M or 00:05:00", True),
    ],
)
@pytest.mark.parametrize("value", [None, 5, "noon"])
def test_a_problem_with_a_date_or_time_shows_its_form(
    form: str, shown: str, foreign: bool, value: object
) -> None:
    """A value of another type gets the same message, also in a list and behind a `$ref`."""
    schema = {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "when": {"type": "string", "format": form},
            "others": {"type": "array", "items": {"$ref": "#/properties/when"}},
        },
    }
    spec = ToolSpec(name="sample", description="A sample.", parameters=schema)
    problem = ArgumentCheck(spec, foreign=foreign).problem({"when": value, "others": [value]})

    assert problem == (
        f"'others[0]' must be {shown}: change it. 'when' must be {shown}: change it."
    )


def test_a_subschema_with_an_id_has_the_usual_message() -> None:
    """The paths of its errors start at the subschema."""
    inner = {"$id": "https://example.com/o", "$defs": {"day": {"type": "string", "format": "date"}}}
    schema = {
        "type": "object",
        "additionalProperties": False,
        "properties": {"when": {"$ref": "https://example.com/o#/$defs/day"}},
        "$defs": {"o": inner},
    }

    assert check_of(schema).problem({"when": 5}) == "'when' must be of type string: change it."


def test_a_choice_is_named_with_all_its_values() -> None:
    """A number out of range is reported with its limit."""
    both = check(unit={"enum": ["days", "weeks"]}, amount={"type": "integer", "maximum": 5})
    problem = both.problem({"unit": "hours", "amount": 6})

    assert problem is not None
    assert "['days', 'weeks']" in problem
    assert "'amount'" in problem
    assert "maximum of 5" in problem


def test_what_fits_has_no_problem() -> None:
    """The first three tools accept the arguments in their descriptions."""
    calculator, calendar, respond = (
        ArgumentCheck(tool.spec) for tool in (Calculator, Calendar, Respond)
    )
    sum_of_days = {"operation": "add", "date": "2025-01-15", "amount": 3, "unit": "days"}

    assert calculator.problem({"expression": "2 + 2"}) is None
    assert respond.problem({"answer": "42"}) is None
    assert calendar.problem(sum_of_days) is None
    assert calendar.problem({"operation": "dance"}) is not None
    assert calculator.problem({"expression": "1" * 1001}) is not None


def test_a_value_is_never_repeated() -> None:
    """Arguments may contain secrets that must not be logged."""
    secret = "sk-live-0123456789"
    strict = check(
        key={"type": "string", "pattern": "^[0-9]+$", "maxLength": 4},
        kind={"enum": ["a"]},
        size={"type": "integer"},
    )
    problem = strict.problem({"key": secret, "kind": secret, "size": secret})

    assert problem is not None
    assert secret not in problem


def test_of_many_problems_the_first_few_are_told() -> None:
    """Only the first few problems are named, so the message stays short."""
    problem = check(**{f"a{n}": {"type": "string"} for n in range(50)}).problem({})

    assert problem is not None
    assert "And 47 more." in problem
    assert len(problem) < 300


@pytest.mark.parametrize("value", [object(), {1: 2}, float("nan"), "\ud800", "a\0"])
def test_what_is_not_json_is_a_problem_and_not_a_crash(value: object) -> None:
    """Arguments that are not JSON give a problem and no exception."""
    assert check(text={"type": "string"}).problem({"text": value}) is not None


def test_arguments_that_are_nested_without_end_are_a_problem() -> None:
    """The validator and the error have a maximum depth."""
    deep: dict[str, Any] = {}
    for _ in range(5000):
        deep = {"a": deep}

    assert check(text={"type": "object"}).problem({"text": deep}) is not None


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string"},
        {"type": "object"},
        {"type": "object", "additionalProperties": True},
        {"type": "object", "additionalProperties": False, "properties": {"a": {"type": "bogus"}}},
        {
            "type": "object",
            "additionalProperties": False,
            "properties": {"a": {"$ref": "https://example.com/schema.json"}},
        },
        {
            "type": "object",
            "additionalProperties": False,
            "properties": {"a": {"$ref": "file:///etc/passwd"}},
        },
    ],
)
def test_an_unfit_schema_is_refused_when_it_is_compiled(schema: dict[str, Any]) -> None:
    """The schema accepts anything, is invalid, or refers to another document."""
    with pytest.raises(UnfitSchemaError, match="sample"):
        check_of(schema)


def test_of_long_arguments_only_the_first_problem_is_named() -> None:
    """Describing a hundred thousand wrong values would take a second."""
    of = check(values={"type": "array", "items": {"type": "number"}})

    assert of.problem({"values": ["a"] * 100_000}) == (
        "'values[0]' must be of type number: change it."
    )
