"""Each sentence of the table is read as documented and answered correctly."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caseworker_cases.evaluation.dataset import load_dataset
from caseworker_cases.planner.places import PLACES
from caseworker_cases.planner.sentences import (
    BEGINNINGS,
    MAX_CHARS,
    SentenceRow,
    normalised,
    readings,
    rows_of,
)
from caseworker_cases.planner.table import ROWS
from tests.data.gold.answers import FILES
from tests.support.planner_page import pages
from tests.unit.cases.planner.desk import Desk

PAGE = Path(__file__).parents[4] / "docs" / "planner.md"
EXAMPLES = {
    "What is (18 + 6) * (9 - 4)?": "120",
    "Sum 14, 28, 42 and 56.": "140",
    "Add 5 to 12.": "17",
    "Subtract 45.75 from 100.": "54.25",
    "Multiply 12 by 7.": "84",
    "Divide 945 by 15.": "63",
    "What is the remainder when 1000 is divided by 7?": "6",
    "What is the difference between 587 and 1,003?": "416",
    "What is 17% of 2,340?": "397.8",
    "Add 19% VAT to 250.": "297.5",
    "Take 20% off 79.90.": "63.92",
    "What is the percent change from 160 to 200?": "25",
    "What percent of 250 is 35?": "14",
    "What is two thirds of 96?": "64",
    "What is the square of 12?": "144",
    "Find the square root of 625.": "25",
    "What is the average of 12, 15, 18 and 25?": "17.5",
    "Round 1234.5678 to the nearest whole number.": "1235",
    "How many hours are in 3 weeks?": "504",
    "What day of the week is September 8, 2025?": "Monday",
    "What day of the week is 100 days after March 3, 2024?": "Tuesday",
    "Which weekday was it 10 days before 2025-10-01?": "Sunday",
    "What date is 45 days after March 15, 2024?": "Monday, April 29, 2024",
    "Add 100 days to 2025-01-01.": "Friday, April 11, 2025",
    "Subtract 30 days from 2024-03-15.": "Wednesday, February 14, 2024",
    "What date was 90 days ago?": "Thursday, October 17, 2024",
    "What is the day after February 28, 2024?": "Thursday, February 29, 2024",
    "How many days are between January 1, 2024 and December 25, 2024?": "359",
    "How old is someone on 2024-06-15 who was born on 16 June 1990?": "33",
    "Is 2024 a leap year?": "yes",
    "How many days are there in February 2024?": "29",
    "How many days are in 2024?": "366",
    "What is the last day of February 2025?": "Friday, February 28, 2025",
    "Give me the end of the month for 2024-11-08.": "Saturday, November 30, 2024",
    "When is the second Tuesday of October 2025?": "Tuesday, October 14, 2025",
    "What is the date of the first Wednesday after 2025-04-10?": "Wednesday, April 16, 2025",
    "What was the last Monday before June 1, 2024?": "Monday, May 27, 2024",
    "Write the date 24.12.2025 in full.": "Wednesday, December 24, 2025",
    "What is today's date?": "Wednesday, January 15, 2025",
    "What time is it?": "Wednesday, January 15, 2025, 12:00 (UTC)",
    "What time is it in Asia/Tokyo?": (
        "Wednesday, January 15, 2025, 21:00 (Asia/Tokyo, UTC+09:00)"
    ),
    "Multiply the number of days between June 3, 2025 and June 10, 2025 by 49.": "343",
    "What is 25% of the number of days between 2024-01-01 and 2024-04-10?": "25",
    "How many days are in 2024, multiplied by 24?": "8784",
    "What was the closing price of AAPL on 2013-01-02?": "549.03",
    "At what price did IBM close on March 15, 2005?": "91.38",
    "What do 15 shares of IBM cost at the closing price of 2011-08-08?": "2493.3",
    "Show the daily prices of GOOG from 2010-01-04 to 2010-01-15.": (
        "GOOG, closing price on 10 trading days from 2010-01-04 to 2010-01-15: first 626.75,"
        " last 580.00, lowest 580.00, highest 626.75, mean 600.37 USD"
    ),
    "What was the total return of AAPL in 2009, in percent, rounded to 2 decimals?": "132.21",
    "What was AAPL's highest raw closing price in 2012?": "702.1",
    "How strongly were the daily returns of IBM and MSFT correlated in 2010?": "0.667403",
    "Which had the higher total return in 2011, IBM or MSFT?": "IBM",
    "Plot the closing price of GOOG in 2009.": (
        "line picture of GOOG from 2009-01-02 to 2009-12-31: plot-goog-line-1.png"
    ),
    "Draw a chart that compares AAPL and MSFT in 2010.": (
        "line picture of AAPL, MSFT from 2010-01-04 to 2010-12-31: plot-aapl-msft-line-1.png"
    ),
    "Draw a candle chart of IBM in March 2009.": (
        "candles picture of IBM from 2009-03-02 to 2009-03-31: plot-ibm-candles-1.png"
    ),
    "Plot the drawdown of AAPL in 2008.": (
        "drawdown picture of AAPL from 2008-01-02 to 2008-12-31: plot-aapl-drawdown-1.png"
    ),
}
"""The answer to the example of each row, determined without the planner."""

_OPTION = re.compile(r"\[([^][()]*)\]|\(([^][()]*)\)")
"""Matches an innermost optional part or a group of alternatives."""


@pytest.mark.req("002/5.1", "002/5.2", "002/5.3", "002/8.1", "002/10.1")
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.example)
async def test_the_example_of_a_row_is_answered_by_its_tools(desk: Desk, row: SentenceRow) -> None:
    """Each example is answered correctly by the documented calls."""
    found = await desk.evidence(row.example)

    assert [one.tool for one in found if one.tool != "respond"] == [
        written.partition(" ")[0] for written in row.written
    ]
    assert await desk.composed(row.example) == EXAMPLES[row.example]


@st.composite
def spelled(draw: st.DrawFn, sentence: str) -> str:
    """Return a question that matches a sentence of the table."""
    for short, long in BEGINNINGS.items():
        sentence = sentence.replace(short, long)
    while option := _OPTION.search(sentence):
        left_out = [""] if option[2] is None else []
        chosen = draw(st.sampled_from([*(option[1] or option[2]).split("|"), *left_out]))
        sentence = sentence[: option.start()] + chosen + sentence[option.end() :]
    return re.sub(
        r"\{(?:[a-z ]+:)?([a-z ]+)\}",
        lambda place: draw(st.sampled_from(PLACES[place[1]].example.split("; "))),
        sentence,
    )


@given(data=st.data())
def test_every_sentence_is_read_in_each_of_its_forms_and_in_one_way(data: st.DataObject) -> None:
    """Every variant of a sentence is read, and all matching rows give the same calls."""
    row = data.draw(st.sampled_from(ROWS))
    question = data.draw(spelled(data.draw(st.sampled_from(row.sentences))))

    found = list(readings(ROWS, question[:1].upper() + question[1:]))

    assert found
    assert all(reading.calls == found[0].calls for reading in found)
    tools = [call.tool for call in found[0].calls if call.tool != "respond"]
    assert tools == [call.tool for call in row.calls]


@pytest.mark.parametrize("name", FILES)
def test_the_cases_that_need_a_model_are_those_that_are_no_sentence_of_the_table(name: str) -> None:
    """Exactly the cases that the planner cannot read are marked as needing a model."""
    for case in load_dataset(FILES[name]).cases:
        is_read = next(readings(ROWS, case.input), None) is not None

        assert case.needs_model == (case.expect == "answer" and not is_read), case.id


def test_the_page_of_the_planner_is_current() -> None:
    """The page is equal to the output of ``python -m tests.support.planner_page``."""
    assert PAGE.read_text(encoding="utf-8") == "\n".join(pages()) + "\n"


def test_a_line_that_stands_in_no_row_is_an_error() -> None:
    """A line outside a row is an error, because its sentence would never be read."""
    with pytest.raises(ValueError, match="in no row"):
        rows_of('a sentence\n    "An example" -> calculator 1\nanother sentence\n')


@pytest.mark.req("002/5.1", "002/8.1")
@pytest.mark.parametrize(
    ("question", "expression"),
    [
        ("what's 12.75 minus 4.9", "12.75 - 4.9"),
        ("WHAT IS 99 PLUS 101", "99 + 101"),
        ("48 multiplied by 25 divided by 6", "48 * 25 / 6"),
        ("What is 2 to the power of 10?", "2 ^ 10"),
        ("12 squared plus 5 cubed", "12^2 + 5^3"),
        ("17 mod 5", "17 % 5"),
        ("6 x 7", "6 * 7"),
        ("1,250,000 - 349,999 =", "1250000 - 349999"),
        ("please compute mean(1, 2.5, 6) + pi", "mean(1, 2.5, 6) + pi"),
        ("What is 8!?", "8!"),
        ("100 \N{MINUS SIGN} 37", "100 - 37"),
        ("144 \N{DIVISION SIGN} 9 \N{MULTIPLICATION SIGN} 2", "144 / 9 * 2"),
        ("10\N{SUPERSCRIPT TWO}\N{SUPERSCRIPT THREE} + 1", "10^23 + 1"),
        ("\uff17\u00a0\uff0b\u2009\uff18\uff1f", "7 + 8"),
        ("half of -7.5", "1 / 2 * -7.5"),
        ("the square of -3", "(-3)^2"),
        ("22 / 7 rounded to 2 decimal places", "round(22 / 7, 2)"),
        ("Calculate 100 / 3 and round it to two decimals.", "round(100 / 3, 2)"),
        ("7.5% of 1,280, to the nearest whole number", "round(7.5 / 100 * 1280, 0)"),
    ],
)
async def test_arithmetic_is_passed_on_in_the_notation_of_the_calculator(
    desk: Desk, question: str, expression: str
) -> None:
    """Words become operators and separators are removed; nothing is calculated."""
    assert await desk.actions(question) == [
        {"tool": "calculator", "args": {"expression": expression}}
    ]


@pytest.mark.req("002/5.2", "002/25.4")
@pytest.mark.parametrize(
    ("written", "passed_on"),
    [
        ("2024-03-15", "2024-03-15"),
        ("Mar. 15, 2024", "2024-03-15"),
        ("the 3rd of may 2024", "2024-05-03"),
        ("Friday, March 15, 2024", "Friday, March 15, 2024"),
        ("24.12.2025", "24.12.2025"),
        ("03/04/2025", "03/04/2025"),
        ("31 April 2025", "31 April 2025"),
        ("tomorrow", "tomorrow"),
    ],
)
async def test_a_date_is_passed_on_for_the_calendar_to_judge(
    desk: Desk, written: str, passed_on: str
) -> None:
    """Dates reach the calendar unchanged, except unambiguous dates with a month name."""
    (action,) = await desk.actions(f"What day of the week is {written}?")

    assert action["args"] == {"operation": "weekday", "date": passed_on}


@pytest.mark.req("002/5.5", "002/25.4")
@pytest.mark.parametrize(
    ("question", "code"),
    [
        ("What day of the week is 03/04/2025?", "ambiguous_date"),
        ("What day of the week is Monday, March 15, 2024?", "invalid_date"),
        ("What day of the week is 31 April 2025?", "invalid_date"),
        ("What is 12 / (3 - 3)?", "division_by_zero"),
        ("What is 99999^99999?", "too_large"),
        ("Calculate (4 + 5 * 2", "invalid_expression"),
        ("What was the closing price of ZZZZ on 2010-06-01?", "unknown_symbol"),
    ],
)
async def test_what_has_no_answer_is_refused_by_the_tool(
    desk: Desk, question: str, code: str
) -> None:
    """Invalid dates, numbers and symbols are rejected by the tools, not by the planner."""
    (result,) = await desk.results(question)

    assert result["code"] == code


def test_rounding_a_date_is_not_understood() -> None:
    """A date cannot be rounded, so the sentence does not match."""
    assert list(readings(ROWS, "What is the day after 2024-02-28, rounded to 2 decimals?")) == []


async def test_a_price_is_rounded_by_the_calculator(desk: Desk) -> None:
    """A rounded price is rounded by the calculator, not by the price tool."""
    question = "adjusted close of GOOG on 2012-10-18, to two decimals"

    assert [action["tool"] for action in await desk.actions(question)] == [
        *("data_fetch_stock", "calculator", "respond")
    ]
    assert await desk.composed(question) == "348.58"


@pytest.mark.parametrize("place", PLACES)
def test_a_place_gives_nothing_back(place: str) -> None:
    """Patterns of places use possessive quantifiers only, so they match in linear time."""
    plain = re.sub(r"\\.|\[[^]]*\]", "", PLACES[place].pattern.pattern)
    repeats = re.findall(r"[*+]\+?|,\}", re.sub(r"[?}]\+", "", plain))

    assert set(repeats) <= {"++", "*+"}


def test_a_question_of_any_length_is_cut_short() -> None:
    """A question longer than the limit is not read."""
    longest = "1" + " + 1" * ((MAX_CHARS - 1) // 4)

    assert list(readings(ROWS, longest))
    assert list(readings(ROWS, longest + " " * MAX_CHARS)) == []
    assert len(normalised(longest)) <= MAX_CHARS
