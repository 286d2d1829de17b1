"""Whether a plan uses the numbers and dates of the question."""

from typing import Any

import pytest

from caseworker.models.gateway import Tier
from caseworker_cases.agent.evidence import CaseEvidence
from caseworker_cases.agent.question import misused

CONVERTED = {"start": "2009-01-01", "end": "2009-12-31"}


def used(question: str, *asked: dict[str, Any], **result: Any) -> bool | None:
    """Return whether a plan with these arguments matches the question; None if unknown."""
    strange = misused(
        question,
        [
            CaseEvidence(
                number=number,
                tier=Tier.SMALL,
                act_step=1,
                tool="tool",
                args=args,
                result=result or {"value": "1"},
            )
            for number, args in enumerate(asked, start=1)
        ],
    )
    return None if strange is None else not strange


@pytest.mark.parametrize(
    ("question", "args"),
    [
        ("What is 12*5?", {"expression": "12 * 5"}),
        ("What is 17% of 2,340?", {"expression": "17% * 2340"}),
        ("What is 17% of 2,340?", {"expression": "0.17 * 2340"}),
        ("What is 17 percent of 2,340?", {"expression": "17 / 100 * 2340"}),
        ("Add 19% VAT to 250.", {"expression": "250 * 1.19"}),
        ("Take 20% off 79.90.", {"expression": "79.9 * 0.8"}),
        ("How many hours are in 3 weeks?", {"expression": "3 * 7 * 24"}),
        ("What is twenty-five plus 17?", {"expression": "25 + 17"}),
        ("What is \uff17 \u00d7 \uff18?", {"expression": "7 * 8"}),
        ("What weekday was July 4, 2012?", {"date": "2012-07-04"}),
        ("Which weekday was the 14th of July 1789?", {"date": "14 July 1789"}),
        ("What weekday is 24.12.2025?", {"date": "2025-12-24"}),
        ("What weekday is 03/04/2025?", {"date": "03/04/2025"}),
        ("Return of AAPL in 2009?", CONVERTED),
        ("end of the month for 2024-11-08", {"year": 2024, "month": 11}),
        ("second Tuesday of October 2025", {"year": 2025, "month": 10, "nth": 2}),
    ],
)
def test_a_plan_with_the_numbers_and_dates_of_the_question_asks_it(
    question: str, args: dict[str, Any]
) -> None:
    """Numbers and dates match in any notation."""
    assert used(question, args) is True


@pytest.mark.parametrize(
    ("question", "args"),
    [
        ("What is 12*5?", {"city": "Paris"}),
        ("What is 12*5?", {"expression": "12 * 6"}),
        ("0.5% of 80,000", {"expression": "0.5 * 80000"}),
        ("What is the square root of -9?", {"expression": "-9 * 17%"}),
        ("What weekday was July 4, 2012?", {"date": "2012-07-05"}),
        ("AAPL's close on 2012-01-01?", {"date": "2012-01-03"}),
        ("What weekday is 03/04/2025?", {"date": "2025-03-04"}),
        ("Round 3.7 to 5 places", {"expression": "round(3.7)"}),
    ],
)
def test_a_plan_without_them_or_with_others_does_not(question: str, args: dict[str, Any]) -> None:
    """A plan with other numbers or dates does not match; the calendar judges ambiguous dates."""
    assert used(question, args) is False


def test_a_later_action_may_use_what_an_earlier_one_has_found() -> None:
    """Later actions may use earlier results, and all actions together must cover the question."""
    question = "Multiply the days between 2025-06-03 and 2025-06-30 by 49."
    days = {"date": "2025-06-03", "end_date": "2025-06-30"}

    assert used(question, days) is False
    assert used(question, days, {"expression": "27 * 49"}, value="27") is True
    assert used(question, days, {"expression": "27 * 49"}, value="28") is False


def test_what_a_failed_action_took_from_the_question_must_stand_in_another_one() -> None:
    """A value of the question that only a failed action used makes the plan a mismatch."""
    question = "What was the closing price of ZZZZ on 2010-06-01?"
    day = {"date": "2010-06-01"}

    def evidence(**second: str) -> list[CaseEvidence]:
        asked: list[tuple[dict[str, str], dict[str, str]]] = [
            ({"symbol": "ZZZZ", **day}, {"error": "unknown"}),
            ({**second, **day}, {"value": "1"}),
        ]
        return [
            CaseEvidence(
                number=at, tier=Tier.SMALL, act_step=at, tool="t", args=args, result=result
            )
            for at, (args, result) in enumerate(asked, start=1)
        ]

    assert misused(question, evidence()) == ["ZZZZ"]
    assert misused(question, evidence(symbol="ZZZZ")) == []


def test_a_question_without_numbers_says_nothing() -> None:
    """A question without numbers, or with too much text, gives no verdict."""
    assert used("Plot it.", {"kind": "line"}) is None
    assert used("7 " * 2000, {"kind": "line"}) is None
