"""Word problems, planned and carried out by the real tools."""

import pytest

from tests.unit.adapters.providers.offline.desk import Desk
from tests.unit.adapters.providers.offline.problem_phrases import (
    ARITHMETIC,
    CHATTER,
    DAYS,
    MIXED,
    TRAPS,
)


@pytest.mark.req("002/5.1", "002/8.1")
@pytest.mark.parametrize(("question", "answer"), ARITHMETIC)
async def test_a_word_problem_is_worked_out(desk: Desk, question: str, answer: str) -> None:
    """In one calculation, whatever the things are called."""
    (action,) = await desk.actions(question)

    assert action["tool"] == "calculator"
    assert await desk.composed(question) == answer


@pytest.mark.req("002/5.1", "002/5.2")
@pytest.mark.parametrize(("question", "answer"), MIXED)
async def test_the_calculator_works_on_what_the_calendar_finds(
    desk: Desk, question: str, answer: str
) -> None:
    """The number of days is not worked out by the planner."""
    tools = [action["tool"] for action in await desk.actions(question)]

    assert tools == ["calendar", "calculator", "respond"]
    assert await desk.composed(question) == answer


@pytest.mark.req("002/5.2", "002/8.1")
@pytest.mark.parametrize(("question", "answer"), DAYS)
async def test_a_question_about_days_in_a_story_is_answered(
    desk: Desk, question: str, answer: str
) -> None:
    """By one operation of the calendar."""
    (action,) = await desk.actions(question)

    assert action["tool"] == "calendar"
    assert await desk.composed(question) == answer


@pytest.mark.parametrize(("question", "answer"), CHATTER)
async def test_what_stands_around_a_question_changes_nothing(
    desk: Desk, question: str, answer: str
) -> None:
    """Politeness, pictograms and orders to disregard instructions."""
    assert await desk.composed(question) == answer


@pytest.mark.parametrize("question", TRAPS)
async def test_a_problem_with_a_word_that_changes_it_is_refused(desk: Desk, question: str) -> None:
    """It is no problem of a kind that is known."""
    plan = await desk.plan(question)

    assert list(plan) == ["cannot"], plan
