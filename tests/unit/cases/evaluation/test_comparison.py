"""The evaluation's own comparison of answers."""

import pytest

from caseworker_cases.evaluation.comparison import same_answer


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("397.8", "397.80"),
        ("1,234,567", "1234567"),
        (" 42 ", "42"),
        ("-4.50", "-4.5"),
        ("\u22124.5", "-4.5"),
        ("+3", "3"),
        (".5", "0.5"),
        ("1e3", "1000"),
        ("0", "-0"),
        ("123456789123456789.10", "123456789123456789.1"),
        ("2025-09-08", "Monday, September 8, 2025"),
        ("September 8, 2025", "Monday, September 8, 2025"),
        ("8 September 2025", "2025-09-08"),
        ("Mon, Sep 8, 2025", "Monday, September 8, 2025"),
        ("MONDAY", "Monday"),
        ("Yes.", "yes"),
        ("two  words", "Two Words"),
        ("Straße", "STRASSE"),
        ("\uff14\uff12", "42"),
    ],
)
def test_the_same_said_differently_is_right(answer: str, gold: str) -> None:
    """Equal numbers, days and texts match in different notations."""
    assert same_answer(answer, gold)


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("397.8000001", "397.8"),
        ("42 apples", "42"),
        ("42%", "42"),
        ("$42", "42"),
        ("1,23", "123"),
        ("12,34,567", "1234567"),
        ("4 2", "42"),
        ("Sunday, September 8, 2025", "Monday, September 8, 2025"),
        ("September 9, 2025", "Monday, September 8, 2025"),
        ("08/09/2025", "Monday, September 8, 2025"),
        ("February 30, 2025", "2025-02-28"),
        ("Monday", "Monday, September 8, 2025"),
        ("no", "yes"),
        ("", "0"),
        ("nan", "0"),
        ("1e999999999", "1"),
        ("9" * 2000, "9" * 1999),
    ],
)
def test_what_says_something_else_is_wrong(answer: str, gold: str) -> None:
    """Different values do not match, without any tolerance or guesses at units and dates."""
    assert not same_answer(answer, gold)
