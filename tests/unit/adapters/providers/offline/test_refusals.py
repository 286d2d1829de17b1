"""What is not understood to the last word is not answered."""

import pytest

from tests.unit.adapters.providers.offline.desk import Desk
from tests.unit.adapters.providers.offline.refused_phrases import (
    BEYOND,
    LEFT_OVER,
    UNCLEAR,
    UNFINISHED,
)


async def refusal(desk: Desk, question: str) -> str:
    """Return the reason; there must be no plan beside it."""
    plan = await desk.plan(question)
    assert list(plan) == ["cannot"], plan
    assert plan["cannot"].startswith("I do not understand")
    return str(plan["cannot"])


@pytest.mark.parametrize("question", BEYOND)
async def test_a_question_beyond_the_planner_is_refused(desk: Desk, question: str) -> None:
    """Never a guess."""
    assert await refusal(desk, question)


@pytest.mark.parametrize(("question", "left_over"), LEFT_OVER)
async def test_words_that_are_left_over_are_named(
    desk: Desk, question: str, left_over: str
) -> None:
    """They may carry meaning, so they are not passed over."""
    assert f"'{left_over}'" in await refusal(desk, question)


@pytest.mark.parametrize(("question", "reason"), UNCLEAR)
async def test_a_question_that_can_mean_two_things_is_refused_with_the_reason(
    desk: Desk, question: str, reason: str
) -> None:
    """The reason says what to write instead, or what is missing."""
    assert reason in await refusal(desk, question)


@pytest.mark.parametrize("question", UNFINISHED)
async def test_a_question_that_ends_too_early_is_refused(desk: Desk, question: str) -> None:
    """Nothing is filled in."""
    assert await refusal(desk, question)


async def test_one_question_that_is_not_understood_spoils_the_others(desk: Desk) -> None:
    """Half an answer would look like a whole one."""
    assert "Hamlet" in await refusal(desk, "What is 2 + 2? Who wrote Hamlet?")
