"""Planners that repeat a plan: its calls are not made again."""

import json
from typing import Any

import pytest

from tests.unit.cases.agent.second_plans import NO_BIG, checked, expression, operation, second
from tests.unit.cases.agent.world import calculate, events, plan, respond, result_of

pytestmark = pytest.mark.req("cw/8.operation")

PLAN = plan(calculate("144 / 12 + 6"))
AGREES = second(expression("144 / 12"), expression("${result.1} + 6"))
OTHER = second(expression("144 / (12 + 6)"))
UNUSED = "Since 2020, 144 eggs are packed by the dozen. How many boxes are they, and 6 more?"
"""A question with a number that no plan needs."""


def _actions(reply: str) -> list[tuple[str, Any]]:
    return [(one["tool"], one["args"]) for one in json.loads(reply)["actions"]]


TWO = plan(calculate("144 / 12"), calculate("${result.1} + 6"))


@pytest.mark.parametrize(
    ("first", "repeated", "calls"),
    [
        (PLAN, PLAN, 1),
        (
            PLAN,
            json.dumps({"actions": [dict(reversed(json.loads(PLAN)["actions"][0].items()))]}),
            1,
        ),
        (PLAN, f"  {PLAN}\n", 1),
        (TWO, TWO, 2),
        (plan(calculate("18"), respond("${result.1}")),) * 2 + (2,),
        (PLAN, plan(calculate("144 / 12 + 7")), 2),
        (PLAN, plan(calculate("144 / 12 + 6"), calculate("18")), 3),
    ],
    ids=["equal", "order of keys", "blanks", "two actions", "respond", "another", "longer"],
)
async def test_calls_of_a_repeated_plan_are_not_made_again(
    first: str, repeated: str, calls: int
) -> None:
    """The pass ends with the results that exist; a plan that differs is run."""
    here = checked(first, repeated, repeated, budget=NO_BIG)

    result = result_of(await here.run(UNUSED))

    assert result["verified"] is False
    assert result["counters"]["tool_calls"] == len(result["evidence"]) == calls
    assert "plan_repeated" in events(result)


async def test_a_repeated_plan_can_still_be_confirmed() -> None:
    """The first second plan differs from both; the big tier's own second plan confirms it."""
    here = checked(PLAN, OTHER, PLAN, PLAN, big=[PLAN, AGREES])

    result = result_of(await here.run("How much are they?"))

    assert (result["answer"], result["verified"], operation(result)) == ("18", True, True)
    assert result["counters"]["tool_calls"] == 1


async def test_a_plan_that_failed_is_run_again() -> None:
    """Its tool may succeed at the next attempt."""
    here = checked(*[plan(calculate("1 / 0"))] * 3, budget=NO_BIG)

    result = result_of(await here.run())

    assert result["counters"]["tool_calls"] == len(here.small.requests) == 2
    assert "plan_repeated" not in events(result)


async def test_a_replay_of_a_repeated_plan_asks_no_model() -> None:
    """A replay takes both plans from the journal and makes no call."""
    here = checked(PLAN, PLAN, PLAN, budget=NO_BIG)

    results = [result_of(await here.run(UNUSED)), result_of(await here.run_again(UNUSED))]

    assert results[0]["counters"] == results[1]["counters"]
    assert len(here.small.requests) == 3
