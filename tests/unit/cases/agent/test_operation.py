"""A second plan or the built-in planner confirms the operation of a model's plan."""

from decimal import Decimal
from typing import Any

import pytest

from caseworker.core.budget.budget import Budget
from caseworker.models.ports import TokenUsage
from caseworker.tools.arguments import object_of, text
from caseworker.tools.ports import ToolContext, ToolResult, ToolSpec
from caseworker_cases.agent.evidence import Action
from caseworker_cases.agent.plan import Plan
from caseworker_cases.stocks.packaged import PackagedPrices
from caseworker_cases.tools.calculator import Calculator
from caseworker_cases.tools.calendar import Calendar
from caseworker_cases.tools.numeric_analysis import NumericAnalysis
from tests.unit.cases.agent.second_plans import NO_BIG, checked, expression, operation, second
from tests.unit.cases.agent.world import (
    calculate,
    events,
    plan,
    provider_down,
    respond,
    result_of,
)

pytestmark = pytest.mark.req("cw/8.operation")

RIGHT = plan(calculate("6 * 7"))


def reading(*actions: Action) -> Any:
    """Return a built-in planner with one plan for every question."""
    return lambda question, expected: Plan(actions)


async def test_a_replay_does_not_ask_for_the_second_plan_again() -> None:
    """A replay takes the second plan from the journal, without a new call."""
    here = checked(RIGHT, second(expression("7 * 6")))

    results = [result_of(await here.run()), result_of(await here.run_again())]

    assert [(operation(each), each["verified"]) for each in results] == [(True, True)] * 2
    assert len(here.small.requests) == 2
    assert results[0]["counters"] == results[1]["counters"]


@pytest.mark.parametrize(
    ("first", "other", "holds"),
    [
        (plan(calculate("6 * 7"), respond("${result.1}")), second(expression("6 * 7")), True),
        (plan(calculate("6 * 7"), respond("42")), second(expression("6 * 7")), True),
        (RIGHT, second(expression("6 * 7"), ("respond", {"answer": "It is 42."})), True),
        (RIGHT, second(expression("6"), expression("${result.1} * 7")), True),
        (plan(calculate("6"), calculate("${result.1} * 7")), second(expression("6 * 7")), True),
        (RIGHT, second(expression("6 * 7"), expression("6 + 7")), False),
        (
            plan(calculate("6"), calculate("6 * 7")),
            second(expression("6"), expression("${result.1} * 7")),
            False,
        ),
        (RIGHT, second(("respond", {"answer": "42"})), False),
        (RIGHT, second(expression("1 / 0"), expression("${result.1} + 42")), False),
        (RIGHT, second(expression("1 / 0")), False),
    ],
)
async def test_a_second_plan_is_compared_by_the_calls_that_its_answer_rests_on(
    first: str, other: str, holds: bool
) -> None:
    """Plans are compared by the calls their answers rest on; the last call must be equal."""
    result = result_of(await checked(first, other, RIGHT, RIGHT, budget=NO_BIG).run())

    verified = [entry for entry in result["logs"] if entry["step_type"] == "verify"]
    assert verified[0]["checks"]["operation"] is holds


def dated(name: str, **args: Any) -> tuple[str, dict[str, Any]]:
    return f"calendar.{name}", args


DAYS = {"date": "2024-10-01", "end_date": "1 July 2024", "unit": "days"}
YEAR = {"metric": "mean", "start": "2010-01-01", "end": "2010-12-31"}


@pytest.mark.parametrize(
    ("one", "other", "holds"),
    [
        (expression("17% * 2340"), expression("2340*0.17"), True),
        (
            dated("date_after", date="3 June 2025", amount=6, unit="weeks"),
            dated("date_after", date="2025-06-03", amount=42, unit="days"),
            True,
        ),
        (
            dated("time_between", **DAYS),
            dated("time_between", date="July 1, 2024", end_date="2024-10-01", unit="days"),
            True,
        ),
        (dated("time_between", **DAYS), dated("time_between", **DAYS | {"unit": "weeks"}), False),
        (
            dated("date_after", date="2025-06-03", amount=1, unit="months"),
            dated("date_after", date="2025-06-03", amount=31, unit="days"),
            False,
        ),
        (
            dated("date_after", date="2025-06-03", amount=1, unit="days"),
            dated("date_before", date="2025-06-03", amount=1, unit="days"),
            False,
        ),
        (
            dated("day_of_week", date="8 September 2025"),
            dated("day_of_week", date="2025-09-15"),
            False,
        ),
        (
            ("numeric_analysis", {**YEAR, "symbol": "Apple"}),
            ("numeric_analysis", {**YEAR, "symbol": "aapl"}),
            True,
        ),
        (
            ("numeric_analysis", {**YEAR, "symbol": "AAPL"}),
            ("numeric_analysis", {**YEAR, "symbol": "AAPL", "metric": "median"}),
            False,
        ),
    ],
)
async def test_calls_are_the_same_if_the_tool_gets_or_finds_the_same(
    one: tuple[str, dict[str, Any]], other: tuple[str, dict[str, Any]], holds: bool
) -> None:
    """Different notations of one call match; other units, directions, dates or metrics do not."""
    tools = [Calculator(), Calendar(), NumericAnalysis(PackagedPrices())]
    replies = [plan(one), second(other), plan(one), plan(one)]
    here = checked(*replies, more_tools=tools[1:], recomputed=tools, budget=NO_BIG)

    result = result_of(await here.run("What does it come to?"))

    assert operation(result) is holds


@pytest.mark.parametrize(("city", "holds"), [("new  york", True), ("Rome", False)])
async def test_calls_of_a_tool_that_is_not_asked_again_are_compared_by_their_arguments(
    city: str, holds: bool
) -> None:
    """Calls that are not recomputed are compared by arguments, ignoring case and spacing."""

    class Weather:
        spec = ToolSpec(
            name="weather",
            description="Tells the weather.",
            parameters=object_of("city", city=text(40)),
        )
        asked = 0

        async def run(self, args: Any, context: ToolContext) -> ToolResult:
            self.asked += 1
            return {"value": "12"}

        async def agrees(self, args: Any, result: ToolResult, context: ToolContext) -> bool:
            return True

    weather = Weather()
    first, other = ("weather", {"city": "New York"}), ("weather", {"city": city})
    replies = [plan(first), second(other), plan(first), plan(first)]
    here = checked(*replies, more_tools=[weather], recomputed=[weather], budget=NO_BIG)

    result = result_of(await here.run("How warm is it?"))

    assert operation(result) is holds
    assert weather.asked == result["counters"]["tool_calls"]


async def test_a_case_that_is_not_verified_anyway_needs_no_second_plan() -> None:
    """An answer that fails verification anyway costs no second plan."""
    result = result_of(await checked(*[plan(respond("42"))] * 3, budget=NO_BIG).run())

    assert (operation(result), result["verified"]) == (None, False)


async def test_a_low_pass_metric_does_not_replace_the_operation() -> None:
    """A pass metric of 0 does not verify an answer whose operation is refuted."""
    replies = [RIGHT, second(expression("6 + 7")), RIGHT, RIGHT]
    result = result_of(await checked(*replies, budget=NO_BIG).run(pass_metric=0.0))

    assert (operation(result), result["verified"]) == (False, False)


@pytest.mark.parametrize(
    ("budget", "dimension"),
    [
        (Budget(max_cost_usd=Decimal("2.2")), "cost_usd"),
        (Budget(max_tokens=2200), "tokens"),
        (Budget(max_llm_calls=1), "llm_calls"),
    ],
)
async def test_a_limit_of_the_run_that_refuses_the_second_plan_halts_it_unconfirmed(
    budget: Budget, dimension: str
) -> None:
    """A limit that refuses the second plan halts the case with an unverified answer."""
    here = checked(RIGHT, second(expression("6 * 7")), budget=budget, external=True)
    here.small.usage = TokenUsage(tokens_in=1000, tokens_out=200)
    outcome = await here.run()

    result = result_of(outcome)
    assert outcome.stop is not None
    assert outcome.stop.cause.dimension == dimension
    assert (result["answer"], result["verified"], operation(result)) == ("42", None, None)
    assert result["finish_reason"] == "budget"
    assert len(here.small.requests) == 1
    assert "second_plan_refused" in events(result)


async def test_a_provider_that_fails_on_the_second_plan_confirms_nothing() -> None:
    """A provider error during the second plan counts as a call and escalates the case."""
    here = checked(
        *(RIGHT, provider_down(), RIGHT, RIGHT), big=[RIGHT, second(expression("6 * 7"))]
    )
    result = result_of(await here.run(mode="fallback_only"))

    assert events(result)[0] == "provider_error"
    assert (result["verified"], result["counters"]["llm_calls_small"]) == (True, 2)


@pytest.mark.parametrize(
    ("read", "holds"),
    [
        (Action("calculator", {"expression": "7 * 6"}), True),
        (Action("calculator", {"expression": "6 + 7"}), False),
        (Action("calculator", {"expression": "6 / 0"}), False),
        (Action("calendar", {"operation": "days_in_year", "year": 2024}), None),
    ],
    ids=["the same", "another", "one that fails", "a tool that is not offered"],
)
async def test_the_built_in_planner_confirms_the_plan_that_it_would_have_made(
    read: Action, holds: bool | None
) -> None:
    """The built-in planner decides if it can read the question; else a second plan is requested."""
    replies = [RIGHT, second(expression("1")), RIGHT, RIGHT]
    here = checked(*replies, budget=NO_BIG, reading=reading(read))

    result = result_of(await here.run())

    asked_for_a_second = any(
        "steps" in (r.json_schema or {}).get("properties", {}) for r in here.small.requests
    )
    assert operation(result) is (False if holds is None else holds)
    assert asked_for_a_second is (holds is None)


async def test_expected_evidence_does_not_outweigh_the_built_in_planner() -> None:
    """A matching expected tool does not verify an answer that the built-in planner refutes."""
    read = reading(Action("calculator", {"expression": "6 + 7"}))
    here = checked(RIGHT, RIGHT, RIGHT, budget=NO_BIG, reading=read)

    result = result_of(await here.run(expected_tools=["calculator"]))

    assert result["verification"]["checks"]["expected_evidence"] is True
    assert (operation(result), result["verified"]) == (False, False)


async def test_another_way_to_the_answer_of_the_built_in_planner_is_confirmed() -> None:
    """Another calculation with the built-in planner's answer is confirmed."""
    days = Action("calendar", {"operation": "days_in_year", "year": 2024})
    tools = [Calculator(), Calendar()]
    replies = [plan(calculate("365 + 1"))]
    here = checked(*replies, more_tools=tools[1:], recomputed=tools, reading=reading(days))

    result = result_of(await here.run("How many days does a leap year have?"))

    assert (operation(result), result["answer"]) == (True, "366")


async def test_a_question_without_words_has_no_operation_to_confirm() -> None:
    """A question without words has no operation, so no second plan is requested."""
    here = checked(RIGHT, second(expression("6 * 7")), budget=NO_BIG)

    result = result_of(await here.run("?!"))

    assert (operation(result), result["verified"]) == (None, None)
    assert len(here.small.requests) == 1
