"""Questions as people write them, planned and carried out by the real tools."""

import pytest

from tests.unit.adapters.providers.offline.arithmetic_phrases import ARITHMETIC
from tests.unit.adapters.providers.offline.date_phrases import DATES
from tests.unit.adapters.providers.offline.desk import Desk
from tests.unit.adapters.providers.offline.refused_phrases import REFUSED_BY_THE_TOOL


@pytest.mark.req("002/5.1", "002/8.1", "002/10.1")
@pytest.mark.parametrize(("question", "value"), ARITHMETIC)
async def test_a_calculation_in_english_is_worked_out(
    desk: Desk, question: str, value: str
) -> None:
    """The value was worked out by hand, not by the code under test."""
    assert await desk.answer(question) == value


@pytest.mark.req("002/5.2", "002/8.1", "002/10.1")
@pytest.mark.parametrize(("question", "value"), DATES)
async def test_a_date_question_in_english_is_worked_out(
    desk: Desk, question: str, value: str
) -> None:
    """The value was looked up in a calendar."""
    assert await desk.answer(question) == value


@pytest.mark.req("002/25.4", "002/5.5")
@pytest.mark.parametrize(("question", "code"), REFUSED_BY_THE_TOOL)
async def test_what_only_the_tool_can_refuse_reaches_the_tool(
    desk: Desk, question: str, code: str
) -> None:
    """Ambiguous and impossible dates are passed on as they were written."""
    assert await desk.answer(question) == code


@pytest.mark.req("002/25.4")
async def test_an_ambiguous_date_is_refused_with_both_readings(desk: Desk) -> None:
    """The planner does not choose between March and April."""
    (result,) = await desk.results("What date is 45 days after 03/04/2025?")

    assert "April 3, 2025 or March 4, 2025" in result["error"]


@pytest.mark.parametrize("dress", [str.upper, str.lower, str.title])
@pytest.mark.parametrize(
    ("question", "value"),
    [
        ("what is seventeen percent of two hundred", "34"),
        ("what day of the week was July 4, 1976?", "Sunday"),
        ("add 5 and 7, then multiply by 2", "24"),
    ],
)
async def test_capital_letters_do_not_matter(
    desk: Desk, dress: type[str], question: str, value: str
) -> None:
    """People shout, and phones capitalise."""
    assert await desk.answer(dress(question)) == value


@pytest.mark.parametrize("before", ["", "Hi! ", "Hello, ", "Please ", "Can you tell me ", "OK so "])
@pytest.mark.parametrize("after", ["", "?", " ?", " please?", ", thanks!", ".", " = ?"])
async def test_politeness_changes_nothing(desk: Desk, before: str, after: str) -> None:
    """Words around a question that carry no meaning are passed over, and only those."""
    assert await desk.answer(f"{before}what is -5 - 3{after}") == "-8"
