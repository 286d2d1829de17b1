"""Questions that the built-in planner misreads."""

import pytest

from caseworker_cases.agent.evidence import Action
from caseworker_cases.agent.node import _built_in_plan
from caseworker_cases.agent.plan import Plan
from tests.unit.cases.agent.second_plans import NO_BIG, checked, expression, operation, second
from tests.unit.cases.agent.world import calculate, plan, result_of

pytestmark = pytest.mark.req("cw/8.operation")

PLAN = plan(calculate("144 / 12 + 6"))
AGREES = second(expression("144 / 12"), expression("${result.1} + 6"))


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
    """The pause may mean a pair of parentheses, so two results are possible."""
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
