"""Dates and numbers at the axes."""

from datetime import date
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.tools.plotting.ticks import DAY_PIXELS, MONTH_PIXELS, NumberLabels, date_ticks
from app.tools.plotting.wording import in_words, plain

MINUS = "\N{MINUS SIGN}"


@pytest.mark.parametrize(
    ("first", "last", "labels"),
    [
        ("2012-11-05", "2012-11-08", ["5 Nov\n2012", "6 Nov", "7 Nov", "8 Nov"]),
        ("2012-10-02", "2012-10-30", ["8 Oct\n2012", "15 Oct", "22 Oct", "29 Oct"]),
        ("2011-10-15", "2012-02-20", ["Nov\n2011", "Dec", "Jan\n2012", "Feb"]),
        ("2011-02-15", "2013-03-20", ["Jul\n2011", "Jan\n2012", "Jul", "Jan\n2013"]),
        ("2000-03-01", "2013-03-01", ["2002", "2004", "2006", "2008", "2010", "2012"]),
    ],
)
def test_ticks_stand_on_round_dates_and_tell_the_year_once(
    first: str, last: str, labels: list[str]
) -> None:
    """Days, Mondays, months or years, whichever fits on 320 pixels."""
    start, end = (date.fromisoformat(day).toordinal() for day in (first, last))

    assert list(date_ticks(start, end, pixels=320).labels) == labels


@given(
    first=st.dates(date(1950, 1, 1), date(2100, 1, 1)),
    length=st.integers(0, 40_000),
    pixels=st.integers(250, 1900),
)
def test_ticks_lie_inside_the_axis_and_have_room(first: date, length: int, pixels: int) -> None:
    """Always at least one, ascending, never more than fit."""
    start = first.toordinal()
    ticks = date_ticks(start, start + length, pixels)

    assert ticks.days
    assert len(ticks.days) == len(ticks.labels)
    assert all(start <= day.toordinal() <= start + length for day in ticks.days)
    assert all(earlier < later for earlier, later in pairwise(ticks.days))
    room = DAY_PIXELS if " " in ticks.labels[0] else MONTH_PIXELS
    assert len(ticks.days) == 1 or len(ticks.days) * room <= pixels


@pytest.mark.parametrize(
    ("values", "labels"),
    [
        ([0, 500, 1000], ["0", "500", "1,000"]),
        ([22.5, 25, 27.5], ["22.5", "25.0", "27.5"]),
        ([99.95, 100.0], ["99.95", "100.00"]),
        ([-0.0, 1.0], ["0", "1"]),
        ([], []),
    ],
)
def test_numbers_have_as_many_decimals_as_tell_them_apart(
    values: list[float], labels: list[str]
) -> None:
    """And the same number of them everywhere."""
    assert NumberLabels().format_ticks(values) == labels


def test_negative_percentages_have_a_real_minus() -> None:
    """And no minus before a zero."""
    assert NumberLabels("%").format_ticks([-20, 0]) == [f"{MINUS}20%", "0%"]
    assert plain(-0.004, 2) == "0.00"
    assert plain(-1234.5, 1) == f"{MINUS}1,234.5"


def test_a_day_is_named_without_regard_to_the_language_of_the_system() -> None:
    """In English, with the day first."""
    assert in_words(date(2012, 3, 5).toordinal()) == "5 Mar 2012"
