"""Calendar arithmetic, checked against a slow and simple computation."""

import calendar
from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caseworker.tools.ports import ToolRefusedError
from caseworker_cases.tools.dates.calculation import (
    count_of_business_days,
    end_of_month,
    next_weekday,
    nth_weekday,
    shifted,
    whole_months_between,
)

days = st.dates(min_value=date(1900, 1, 1), max_value=date(2200, 1, 1))


@given(day=days, amount=st.integers(-20_000, 20_000))
def test_days_and_weeks_are_counted_as_timedelta_counts_them(day: date, amount: int) -> None:
    """The standard library gives the same dates."""
    assert shifted(day, amount, "days") == day + timedelta(days=amount)
    assert shifted(day, amount, "weeks") == day + timedelta(weeks=amount)


@given(day=days, amount=st.integers(-600, 600))
def test_months_keep_the_day_or_end_on_the_last_one(day: date, amount: int) -> None:
    """One month after January 31 is the last day of February."""
    moved = shifted(day, amount, "months")
    last = calendar.monthrange(moved.year, moved.month)[1]

    assert (moved.year - day.year) * 12 + moved.month - day.month == amount
    assert moved.day == min(day.day, last)
    assert shifted(day, amount, "years") == shifted(day, 12 * amount, "months")


@given(day=days, amount=st.integers(-60, 60))
def test_business_days_are_counted_one_by_one(day: date, amount: int) -> None:
    """Only Mondays to Fridays count, whatever day the count starts on."""
    step = timedelta(days=1 if amount > 0 else -1)
    wanted, left = day, abs(amount)
    while left:
        wanted += step
        left -= wanted.weekday() < 5

    assert shifted(day, amount, "business_days") == wanted


@given(start=days, length=st.integers(0, 900))
def test_business_days_between_two_dates_are_counted_as_if_one_by_one(
    start: date, length: int
) -> None:
    """Business days between two dates include both ends."""
    every = [start + timedelta(days=number) for number in range(length + 1)]

    assert count_of_business_days(start, every[-1]) == sum(day.isoweekday() < 6 for day in every)


@given(start=days, length=st.integers(0, 40_000))
def test_whole_months_and_days_lead_from_the_start_to_the_end(start: date, length: int) -> None:
    """No further month fits in between."""
    end = start + timedelta(days=length)
    months, rest = whole_months_between(start, end)

    assert shifted(start, months, "months") + timedelta(days=rest) == end
    assert rest >= 0
    assert shifted(start, months + 1, "months") > end


@given(year=st.integers(1, 9999), month=st.integers(1, 12), weekday=st.integers(0, 6))
def test_the_nth_weekday_is_found_in_the_calendar_of_the_month(
    year: int, month: int, weekday: int
) -> None:
    """The standard library's calendar gives the same day."""
    found = [
        date(year, month, week[weekday])
        for week in calendar.monthcalendar(year, month)
        if week[weekday]
    ]

    assert [nth_weekday(year, month, weekday, n + 1) for n in range(len(found))] == found
    assert nth_weekday(year, month, weekday, -1) == found[-1]
    with pytest.raises(ToolRefusedError):
        nth_weekday(year, month, weekday, len(found) + 1)


@given(day=days, weekday=st.integers(0, 6), forward=st.booleans())
def test_the_next_weekday_is_never_the_day_itself(day: date, weekday: int, forward: bool) -> None:
    """The result is one to seven days later."""
    found = next_weekday(day, weekday, forward=forward)

    assert found.weekday() == weekday
    assert 1 <= (found - day).days * (1 if forward else -1) <= 7


@pytest.mark.parametrize(
    ("day", "amount", "unit"),
    [
        (date.max, 1, "days"),
        (date.min, -1, "days"),
        (date.max, 1, "months"),
        (date.min, -1, "years"),
        (date.max, 4_000_000, "business_days"),
        (date(2025, 1, 15), 4_000_000, "years"),
    ],
)
def test_a_day_outside_the_calendar_is_refused(day: date, amount: int, unit: str) -> None:
    """A day outside the years 1 to 9999 is rejected."""
    with pytest.raises(ToolRefusedError, match="years 1 to 9999"):
        shifted(day, amount, unit)  # type: ignore[arg-type]


def test_the_end_of_february_depends_on_the_year() -> None:
    """2024 and 2000 are leap years, 2100 is not."""
    assert [end_of_month(year, 2).day for year in (2000, 2023, 2024, 2100)] == [29, 28, 29, 28]
