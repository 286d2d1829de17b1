"""Sums of times as people write them, carried out by the real calculator."""

import pytest

from tests.unit.adapters.providers.offline.desk import Desk

SUMS = [
    ("2 hours 30 minutes times 4", "600 minutes"),
    ("What is 4 times 2 hours and 30 minutes?", "600 minutes"),
    ("(2 hours 30 minutes) * 4 in hours", "10"),
    ("2 hours 30 minutes + 45 minutes", "195 minutes"),
    ("45 minutes plus 1 h 20 min", "125 minutes"),
    ("How long is 3 times 25 minutes?", "75 minutes"),
    ("90 minutes minus 1 hour in seconds", "1800"),
    ("10 hours divided by 4", "2.5 hours"),
    ("2 hours / 30 minutes", "4"),
    ("5 days minus 36 hours in days", "3.5"),
    ("two weeks minus three days", "11 days"),
]
"""Questions and answers, worked out by hand."""


@pytest.mark.req("002/5.1")
@pytest.mark.parametrize(("question", "answer"), SUMS)
async def test_a_sum_of_times_is_told_with_its_unit(desk: Desk, question: str, answer: str) -> None:
    """A number alone where the unit was asked for, or where none is left."""
    assert await desk.composed(question) == answer


@pytest.mark.parametrize(
    "question",
    [
        "3 hours + 5",
        "5 minus 20 minutes",
        "2 hours times 3 hours",
        "3 months times 2",
        "50% plus 2 hours",
        "times 3 hours",
        "20 minutes plus 4 minutes and a cat",
    ],
)
async def test_what_is_no_sum_of_times_is_refused(desk: Desk, question: str) -> None:
    """Rather than read as one."""
    assert await desk.refusal(question)
