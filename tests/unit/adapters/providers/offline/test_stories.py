"""Problems of several sentences, planned and carried out by the real tools."""

from dataclasses import replace

import pytest

from app.adapters.providers.offline.reading import questions
from app.adapters.providers.offline.reading.questions import NotUnderstoodError, understand
from app.adapters.providers.offline.reading.rules import ASIDE, RULES
from tests.unit.adapters.providers.offline import (
    arithmetic_phrases,
    date_phrases,
    problem_phrases,
    stock_phrases,
)
from tests.unit.adapters.providers.offline.desk import NOW, Desk
from tests.unit.adapters.providers.offline.story_phrases import (
    AMOUNTS,
    HOLDERS,
    PERCENTAGES,
    PURCHASES,
    RATES,
    SHAPES_AND_UNITS,
    STOCKS,
    TRAPS,
    WEEKDAYS,
)

ANSWERED = [*AMOUNTS, *PURCHASES, *PERCENTAGES, *RATES, *HOLDERS, *SHAPES_AND_UNITS]
KNOWN = [
    question
    for question, *_ in [
        *(*ANSWERED, *WEEKDAYS, *STOCKS),
        *(*arithmetic_phrases.ARITHMETIC, *date_phrases.DATES),
        *(*problem_phrases.ARITHMETIC, *problem_phrases.MIXED, *problem_phrases.DAYS),
        *(*stock_phrases.PRICES, *stock_phrases.FIGURES),
    ]
]


@pytest.mark.req("002/5.1", "002/8.1")
@pytest.mark.parametrize(("question", "answer"), ANSWERED)
async def test_a_story_is_worked_out(desk: Desk, question: str, answer: str) -> None:
    """In one calculation, whoever it is about."""
    (action,) = await desk.actions(question)

    assert action["tool"] == "calculator"
    assert await desk.composed(question) == answer


@pytest.mark.req("002/5.2", "002/8.1")
@pytest.mark.parametrize(("question", "answer"), WEEKDAYS)
async def test_days_are_counted_by_the_calendar(desk: Desk, question: str, answer: str) -> None:
    """In one operation."""
    (action,) = await desk.actions(question)

    assert action["tool"] == "calendar"
    assert await desk.composed(question) == answer


@pytest.mark.req("002/5.3", "002/8.1")
@pytest.mark.parametrize(("question", "answer"), STOCKS)
async def test_prices_are_found_however_they_are_asked_for(
    desk: Desk, question: str, answer: str
) -> None:
    """The numbers stand in the packaged file."""
    assert await desk.composed(question) == answer


@pytest.mark.parametrize("question", TRAPS)
async def test_a_story_of_another_kind_is_refused(desk: Desk, question: str) -> None:
    """Never a guess: a wrong answer would pass for a verified one."""
    plan = await desk.plan(question)

    assert list(plan) == ["cannot"], plan


@pytest.mark.parametrize("question", KNOWN)
def test_the_words_that_a_rule_needs_only_spare_work(
    question: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With every rule tried, the same is read."""
    found = understand(question, NOW.date())

    monkeypatch.setattr(questions, "RULES", [replace(rule, needs=frozenset()) for rule in RULES])
    monkeypatch.setattr(questions, "ASIDE", [replace(rule, needs=frozenset()) for rule in ASIDE])

    assert understand(question, NOW.date()) == found


@pytest.mark.parametrize("question", TRAPS)
def test_no_rule_is_kept_from_a_trap_by_its_words_alone(
    question: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is refused is refused by the grammar."""
    monkeypatch.setattr(questions, "RULES", [replace(rule, needs=frozenset()) for rule in RULES])
    monkeypatch.setattr(questions, "ASIDE", [replace(rule, needs=frozenset()) for rule in ASIDE])

    with pytest.raises(NotUnderstoodError):
        understand(question, NOW.date())
