"""Days that are counted, placed in their year, or put in order."""

from datetime import date, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from app.tools.calendar import Calendar
from app.tools.dates.calculation import count_of_business_days, count_of_weekday
from app.tools.ports import ToolContext

days = st.dates(min_value=date(1900, 1, 1), max_value=date(2200, 1, 1))
shared = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)


@given(start=days, length=st.integers(0, 900), weekday=st.integers(0, 6))
def test_weekdays_are_counted_as_if_one_by_one(start: date, length: int, weekday: int) -> None:
    """Both ends are included."""
    every = [start + timedelta(days=number) for number in range(length + 1)]

    assert count_of_weekday(start, every[-1], weekday) == sum(
        day.isoweekday() == weekday + 1 for day in every
    )
    assert count_of_business_days(start, every[-1]) == sum(day.isoweekday() < 6 for day in every)


FACTS = [
    # May 2024 began on a Wednesday: Mondays on 6, 13, 20 and 27, Fridays on 3, 10, 17, 24 and 31.
    (
        "count_weekday",
        {"date": "2024-05-01", "end_date": "2024-05-31", "weekday": "Monday"},
        "4",
        "4 Mondays from Wednesday, May 1, 2024 to Friday, May 31, 2024, both included",
    ),
    (
        "count_weekday",
        {"date": "2024-05-31", "end_date": "2024-05-03", "weekday": "Friday"},
        "5",
        "5 Fridays from Friday, May 3, 2024 to Friday, May 31, 2024, both included",
    ),
    (
        "count_business_days",
        {"date": "2024-05-01", "end_date": "2024-05-31"},
        "23",
        "23 business days from Wednesday, May 1, 2024 to Friday, May 31, 2024, both included",
    ),
    (
        "count_business_days",
        {"date": "2024-05-04", "end_date": "2024-05-06"},
        "1",
        "1 business day from Saturday, May 4, 2024 to Monday, May 6, 2024, both included",
    ),
    (
        "week_number",
        {"date": "2021-01-03"},
        "53",
        "January 3, 2021 is in week 53 of 2020 (ISO 8601)",
    ),
    (
        "week_number",
        {"date": "2024-12-30"},
        "1",
        "December 30, 2024 is in week 1 of 2025 (ISO 8601)",
    ),
    ("day_of_year", {"date": "2024-03-01"}, "61", "March 1, 2024 is day 61 of 366 in 2024"),
    ("day_of_year", {"date": "2023-12-31"}, "365", "December 31, 2023 is day 365 of 365 in 2023"),
    ("quarter", {"date": "2024-03-31"}, "1", "March 31, 2024 is in Q1 2024"),
    ("quarter", {"date": "October 1, 2024"}, "4", "October 1, 2024 is in Q4 2024"),
    (
        "earlier",
        {"date": "1989-11-09", "end_date": "July 20, 1969"},
        "1969-07-20",
        "Sunday, July 20, 1969",
    ),
    (
        "later",
        {"date": "1989-11-09", "end_date": "1969-07-20"},
        "1989-11-09",
        "Thursday, November 9, 1989",
    ),
]


@pytest.mark.req("002/5.2", "002/25.2")
@pytest.mark.parametrize(("operation", "args", "value", "text"), FACTS)
async def test_a_count_has_a_value_and_words(
    calendar: Calendar,
    context: ToolContext,
    operation: str,
    args: dict[str, Any],
    value: str,
    text: str,
) -> None:
    """The words say which days were counted."""
    result = await calendar.run({"operation": operation, **args}, context)

    assert (result.get("value"), result.get("text")) == (value, text), result


async def test_a_week_is_told_with_its_own_year(calendar: Calendar, context: ToolContext) -> None:
    """The first days of January can belong to the last week of the year before."""
    result = await calendar.run({"operation": "week_number", "date": "2021-01-03"}, context)

    assert (result["iso_year"], result["iso_week"]) == (2020, "2020-W53")


@shared
@given(day=days)
async def test_a_week_belongs_to_the_year_of_its_thursday(
    calendar: Calendar, context: ToolContext, day: date
) -> None:
    """And is as many weeks after that year's first Thursday."""
    thursday = day + timedelta(days=4 - day.isoweekday())
    result = await calendar.run({"operation": "week_number", "date": day.isoformat()}, context)

    first = date(thursday.year, 1, 1)
    assert result["iso_year"] == thursday.year
    assert result["value"] == str((thursday - first).days // 7 + 1)


@shared
@given(day=days)
async def test_a_day_is_placed_in_its_year(
    calendar: Calendar, context: ToolContext, day: date
) -> None:
    """By the days since its first of January."""
    number = await calendar.run({"operation": "day_of_year", "date": day.isoformat()}, context)
    quarter = await calendar.run({"operation": "quarter", "date": day.isoformat()}, context)

    assert number["value"] == str((day - date(day.year, 1, 1)).days + 1)
    assert quarter["value"] == "111222333444"[day.month - 1]


@pytest.mark.parametrize(
    ("first", "second", "earlier", "which"),
    [
        ("2024-05-03 14:00", "2024-05-03 09:00", "2024-05-03T09:00:00+02:00", "end_date"),
        ("2024-05-03T1400", "2024-05-03T0900", "2024-05-03T09:00:00+02:00", "end_date"),
        ("20240503T1400Z", "20240503T09Z", "2024-05-03T11:00:00+02:00", "end_date"),
        ("2024-05-03_14:00", "2024-05-03 09:00", "2024-05-03T09:00:00+02:00", "end_date"),
        # 11:00 in UTC is 13:00 in Berlin.
        ("2024-05-03T12:59", "2024-05-03T11:00Z", "2024-05-03T12:59:00+02:00", "date"),
        ("2024-05-03T13:00", "2024-05-03T11:00Z", "2024-05-03T13:00:00+02:00", "both"),
        # Clocks show 2:00 to 3:00 twice on that day.
        (
            "2024-10-27T02:10+01:00",
            "2024-10-27T02:50+02:00",
            "2024-10-27T02:50:00+02:00",
            "end_date",
        ),
    ],
)
async def test_instants_are_put_in_order_as_instants(
    calendar: Calendar, context: ToolContext, first: str, second: str, earlier: str, which: str
) -> None:
    """Not by what clocks show."""
    args = {"date": first, "end_date": second, "timezone": "Europe/Berlin"}
    one = await calendar.run({"operation": "earlier", **args}, context)
    other = await calendar.run({"operation": "later", **args}, context)

    assert (one["value"], one["which"]) == (earlier, which)
    assert {one["which"], other["which"]} in ({"date", "end_date"}, {"both"})


@pytest.mark.parametrize(
    ("operation", "args", "told"),
    [
        ("earlier", {"date": "2024-05-03", "end_date": "2024-05-03 09:00"}, "with both dates"),
        ("earlier", {"date": "2024-05-03"}, "needs end_date"),
        ("count_weekday", {"date": "2024-05-03", "end_date": "2024-05-04"}, "needs weekday"),
        ("week_number", {"date": "03/04/2025"}, "can be read as"),
        ("quarter", {"date": 5}, "must be text"),
        ("later", {"date": 5, "end_date": 6}, "must be text"),
    ],
)
async def test_what_cannot_be_counted_is_refused(
    calendar: Calendar, context: ToolContext, operation: str, args: dict[str, Any], told: str
) -> None:
    """With what is missing or unclear."""
    result = await calendar.run({"operation": operation, **args}, context)

    assert told in result.get("error", ""), result
