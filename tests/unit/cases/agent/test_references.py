"""References to earlier results in the arguments of later actions."""

from typing import Any

import pytest

from caseworker_cases.agent.plan import (
    MAX_FILLED_CHARS,
    PlanSchemaError,
    UnresolvedReferenceError,
    fill,
    parse_plan,
)
from tests.unit.cases.agent.world import BrokenTool, calculate, case_run, plan, respond, result_of

RESULTS: dict[int, dict[str, Any]] = {
    1: {"value": "42", "expression": "6 * 7", "parts": [1.5, {"name": "x"}]},
    2: {"text": "Monday", "count": 3, "nothing": None},
    3: {"error": "It failed.", "code": "failed"},
}


@pytest.mark.parametrize(
    ("written", "filled"),
    [
        ("${result.1}", "42"),
        ("${result.1} * 2", "42 * 2"),
        ("${result.1} and ${result.2}", "42 and Monday"),
        ("${result.2}", "Monday"),
        ("${result.1.parts}", [1.5, {"name": "x"}]),
        ("${result.1.parts.0}", 1.5),
        ("${result.1.parts.1.name}!", "x!"),
        ("${result.2.count} days", "3 days"),
        ({"deep": ["${result.2.count}"]}, {"deep": [3]}),
        ("${HOME} $${result} {result.1}", "${HOME} $${result} {result.1}"),
        (7, 7),
        (None, None),
    ],
)
def test_a_place_becomes_the_value_and_inside_a_text_its_text(written: Any, filled: Any) -> None:
    """A reference alone becomes the value, within a text its text; other values stay unchanged."""
    assert fill({"x": written}, RESULTS) == {"x": filled}


def test_what_a_result_holds_is_never_read_as_a_place() -> None:
    """References are resolved once, so a reference inside a result stays as text."""
    results = {1: {"value": "${result.2}"}, 2: {"value": "secret"}}

    assert fill({"x": "${result.1}", "y": "a ${result.1}"}, results) == {
        "x": "${result.2}",
        "y": "a ${result.2}",
    }


@pytest.mark.parametrize(
    "written",
    [
        "${result.3}",
        "${result.4}",
        "${result.1.absent}",
        "${result.1.parts.9}",
        "${result.1.parts.-1}",
        "${result.1.value.__class__}",
        "${result.2.nothing}",
        "of ${result.2.nothing}",
    ],
)
def test_a_place_without_a_value_is_refused(written: str) -> None:
    """A reference without a value, or to a failed result, is rejected; attributes are not read."""
    with pytest.raises(UnresolvedReferenceError):
        fill({"x": written}, RESULTS)


def test_places_cannot_multiply_a_text_without_end() -> None:
    """The resolved text is limited, because nested references could grow it without bound."""
    results = {1: {"value": "x" * (MAX_FILLED_CHARS // 2)}}

    assert fill({"x": "${result.1}${result.1}"}, results)
    with pytest.raises(UnresolvedReferenceError, match="more than"):
        fill({"x": "${result.1}", "y": ["${result.1}", "${result.1}"]}, results)


@pytest.mark.req("002/10.1", "002/18.1")
@pytest.mark.parametrize(
    ("first", "second", "problem"),
    [
        ("${result.1}", "1", "actions[0].args: only the results of earlier actions"),
        ("1", "${result.2}", "actions[1].args: only the results of earlier actions"),
        ("1", "${result}", "actions[1].args: write ${result.1}"),
        ("1", "${result.1", "actions[1].args: write ${result.1}"),
        ("1", "${results.1}", "actions[1].args: write ${result.1}"),
        ("1", "${result.1..x}", "actions[1].args: write ${result.1}"),
    ],
)
def test_a_plan_whose_places_lead_nowhere_is_no_plan(first: str, second: str, problem: str) -> None:
    """A plan with an invalid reference is rejected, and the reprompt shows the correct form."""
    with pytest.raises(PlanSchemaError) as refused:
        parse_plan(plan(calculate(first), calculate(second)))

    assert problem in str(refused.value)


@pytest.mark.req("002/10.5", "002/18.5", "002/5.4")
async def test_an_action_uses_what_the_one_before_has_found() -> None:
    """The evidence holds the resolved arguments, so it can be recomputed."""
    here = case_run(
        [plan(calculate("6 * 7"), calculate("${result.1} * 2"), respond("${result.2}"))]
    )

    result = result_of(await here.run(gold_answer="84"))

    assert [found["args"] for found in result["evidence"]] == [
        {"expression": "6 * 7"},
        {"expression": "42 * 2"},
        {"answer": "84"},
    ]
    assert (result["answer"], result["verified"]) == ("84", True)
    assert result["counters"]["tool_calls"] == 3


@pytest.mark.req("002/4.1")
async def test_an_action_whose_place_stays_empty_is_not_run_and_the_planner_is_told() -> None:
    """An action with an unresolved reference is not run or counted; the next prompt explains it."""
    here = case_run(
        [plan(("broken", {}), calculate("${result.1} * 2")), plan(calculate("6 * 7"))],
        more_tools=[BrokenTool()],
    )

    result = result_of(await here.run())

    assert result["evidence"][1]["args"] == {"expression": "${result.1} * 2"}
    assert result["evidence"][1]["result"]["code"] == "missing_result"
    assert result["counters"]["tool_calls"] == 2 == here.scope.usage.to_dict()["tool_calls"]
    assert "Action 1 has no result" in here.small.document(1)["failure"]
    assert result["answer"] == "42"
