"""The answer composed of several findings."""

from typing import Any

import pytest

from caseworker.models.gateway import Tier
from caseworker_cases.agent.evidence import CaseEvidence, compose

ROWS = {"rows": [["2012-01-03", 411.23]], "text": "AAPL, closing price on 250 trading days"}
PICTURE = {"artifact": "plot-AAPL.png", "text": "line picture of AAPL: plot-AAPL.png"}
FIGURE = {"value": 30.58, "text": "total return of AAPL: 30.58 percent"}
DAY = {"value": "2012-09-19", "text": "Wednesday, September 19, 2012", "iso": "2012-09-19"}


def answer_of(*results: dict[str, Any]) -> str | None:
    """Return the answer of one pass with these results."""
    basis = [
        CaseEvidence(
            number=number, tier=Tier.SMALL, act_step=1, tool=f"t{number}", args={}, result=result
        )
        for number, result in enumerate(results, start=1)
    ]
    answer = compose(basis)
    if answer is not None:
        assert answer.basis == tuple(basis)
    return None if answer is None else answer.text


@pytest.mark.req("002/5.3", "002/5.4")
@pytest.mark.parametrize(
    ("results", "answer"),
    [
        ([ROWS, FIGURE, PICTURE], "30.58"),
        ([PICTURE, FIGURE], "30.58"),
        ([DAY, PICTURE], "Wednesday, September 19, 2012"),
        ([ROWS, FIGURE, {"value": "2"}], "30.58; 2"),
        ([{"value": "yes", "text": "yes"}, ROWS], "yes"),
    ],
)
def test_what_describes_rows_and_pictures_stays_evidence_beside_a_value(
    results: list[dict[str, Any]], answer: str
) -> None:
    """Descriptions of rows and pictures are left out of the answer but stay in its basis."""
    assert answer_of(*results) == answer


@pytest.mark.parametrize(
    ("results", "answer"),
    [
        ([PICTURE], PICTURE["text"]),
        ([ROWS, PICTURE], f"{ROWS['text']}; {PICTURE['text']}"),
        ([PICTURE, {"error": "no", "code": "x"}], PICTURE["text"]),
    ],
)
def test_a_description_is_the_answer_where_nothing_else_was_found(
    results: list[dict[str, Any]], answer: str
) -> None:
    """A description is the answer if no tool returned a value."""
    assert answer_of(*results) == answer


def test_words_that_are_a_finding_of_their_own_are_part_of_the_answer() -> None:
    """A text result without rows or a picture is part of the answer."""
    assert answer_of({"value": "2"}, {"text": "Tim Cook"}, PICTURE) == "2; Tim Cook"
