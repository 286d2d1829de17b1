"""A planner that repeats a plan: the calls are not made again, and a second plan decides."""

import json
from typing import Any

import pytest

from caseworker_cases.agent.evidence import Action
from caseworker_cases.agent.node import _built_in_plan
from caseworker_cases.agent.plan import Plan
from tests.unit.cases.agent.test_operation import NO_BIG, checked, expression, operation, second
from tests.unit.cases.agent.world import calculate, events, plan, respond, result_of, world

pytestmark = pytest.mark.req("cw/8.operation")

PLAN = plan(calculate("144 / 12 + 6"))
AGREES = second(expression("144 / 12"), expression("${result.1} + 6"))
OTHER = second(expression("144 / (12 + 6)"))
UNUSED = "Since 2020, 144 eggs are packed by the dozen. How many boxes are they, and 6 more?"
"""A question with a number that no plan needs."""


@pytest.mark.parametrize(
    ("question", "repeated"),
    [
        (UNUSED, PLAN),
        ("A box of 12 from shelf 77 is one of 144 / 12; how many are they with 6 more?", PLAN),
        (
            UNUSED,
            json.dumps({"actions": [{"args": calculate("144 / 12 + 6")[1], "tool": "calculator"}]}),
        ),
        (
            "Add 6 to 144 / 12, as on page 91.",
            plan(calculate("144 / 12"), calculate("${result.1} + 6")),
        ),
        (
            "Add 6 to 144 / 12, as on page 91.",
            plan(calculate("144 / 12 + 6"), respond("${result.1}")),
        ),
    ],
    ids=["a year", "a shelf", "another order of keys", "two actions", "with respond"],
)
async def test_a_repeated_plan_that_the_second_plan_confirms_is_verified(
    question: str, repeated: str
) -> None:
    """The calls are made once; the planner is asked twice, and once for the second plan."""
    here = checked(plan(*_actions(repeated)), repeated, AGREES, budget=NO_BIG)

    result = result_of(await here.run(question))

    assert (result["answer"], result["verified"], operation(result)) == ("18", True, True)
    assert result["verification"]["checks"]["question_used"] is None
    assert len(here.small.requests) == 3
    assert result["counters"]["tool_calls"] == len(result["evidence"]) <= 2
    assert events(result) == ["plan_repeated"]


def _actions(reply: str) -> list[tuple[str, Any]]:
    return [(one["tool"], one["args"]) for one in json.loads(reply)["actions"]]


@pytest.mark.parametrize(
    ("reply", "holds"),
    [(OTHER, False), (second(expression("6")), False), ("I am sure.", None)],
    ids=["another calculation", "a part of it", "no plan"],
)
async def test_a_repeated_plan_that_the_second_plan_does_not_confirm_stays_unverified(
    reply: str, holds: bool | None
) -> None:
    """The check of the question's numbers keeps its objection."""
    here = checked(PLAN, PLAN, reply, PLAN, budget=NO_BIG)

    result = result_of(await here.run(UNUSED))

    assert (result["verified"], operation(result)) == (False, holds)
    assert result["verification"]["checks"]["question_used"] is False
    assert result["counters"]["tool_calls"] == 1


@pytest.mark.parametrize(
    "replies",
    [
        [plan(respond("18"))] * 3,
        [plan(calculate("1 / 0"))] * 3,
        [plan(calculate("1 + 1"), calculate("1 / 0"))] * 3,
    ],
    ids=["nothing confirms it", "it fails", "a part of it fails"],
)
async def test_a_repeated_plan_without_a_confirmed_value_asks_for_no_second_plan(
    replies: list[str],
) -> None:
    """A second plan confirms the choice of the calls, never a value."""
    here = checked(*replies, budget=NO_BIG)

    result = result_of(await here.run("What comes of it?"))

    assert result["verified"] is False
    assert not any("steps" in request.json_schema["properties"] for request in here.small.requests)


async def test_a_plan_that_failed_is_run_again() -> None:
    """Its tool may succeed at the next attempt."""
    here = checked(*[plan(calculate("1 / 0"))] * 3, budget=NO_BIG)

    result = result_of(await here.run())

    assert result["counters"]["tool_calls"] == len(here.small.requests) == 2
    assert "plan_repeated" not in events(result)


async def test_a_repeated_plan_is_not_overruled_without_second_plans() -> None:
    """With ``second_plan: off`` the check of the question's numbers keeps its objection."""
    here = world([PLAN, PLAN, PLAN], budget=NO_BIG)

    result = result_of(await here.run(UNUSED))

    assert result["verified"] is False
    assert len(here.small.requests) == 3


async def test_a_replay_of_a_repeated_plan_asks_no_model() -> None:
    """A replay takes both plans and the second plan from the journal."""
    here = checked(PLAN, PLAN, AGREES, budget=NO_BIG)

    results = [result_of(await here.run(UNUSED)), result_of(await here.run_again(UNUSED))]

    assert [each["verified"] for each in results] == [True, True]
    assert len(here.small.requests) == 3


@pytest.mark.parametrize(
    "written", ["144 / 12, + 6", "(144 / 12 + 6", "144 / 12 +", "144 / / 12", "144 ; 12"]
)
async def test_a_reading_that_is_no_calculation_leaves_the_decision_to_the_second_plan(
    written: str,
) -> None:
    """A misread question refutes nothing."""
    read = Plan((Action("calculator", {"expression": written}),))
    here = checked(PLAN, AGREES, budget=NO_BIG, reading=lambda question, expected: read)

    result = result_of(await here.run("What is 144 divided by 12, plus 6?"))

    assert (result["verified"], operation(result)) == (True, True)
    assert len(here.small.requests) == 2


@pytest.mark.parametrize(
    "question",
    [
        "What is 144 divided by 12, plus 6?",
        "What is 10 plus 5, times 2?",
        "What is 12 times, 3?",
        "What is 100, divided by 4?",
        "What is 100, - 4?",
    ],
)
def test_the_built_in_planner_does_not_read_a_comma_beside_an_operator(question: str) -> None:
    """The pause may stand for a pair of parentheses, so two results are possible."""
    assert _built_in_plan(question, ()) is None


@pytest.mark.parametrize(
    ("question", "written"),
    [
        ("What is 1,000 plus 5?", "1000 + 5"),
        ("What is 144 divided by 12 plus 6?", "144 / 12 + 6"),
        ("What is max(3, 4) * 2?", "max(3, 4) * 2"),
        ("What is max(3, -4)?", "max(3, -4)"),
    ],
)
def test_commas_in_numbers_and_arguments_are_read(question: str, written: str) -> None:
    """Thousands separators and arguments of functions are no pauses."""
    read = _built_in_plan(question, ())

    assert read is not None
    assert [action.args["expression"] for action in read.actions] == [written]
