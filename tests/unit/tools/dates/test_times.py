"""Times of day: conversion to another zone, differences and sums."""

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from caseworker.tools.ports import ToolContext
from caseworker_cases.tools.calendar import Calendar

BERLIN, NEW_YORK = "Europe/Berlin", "America/New_York"
shared = settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
moments = st.datetimes(datetime(2008, 1, 2), datetime(2036, 12, 30)).map(  # noqa: DTZ001
    lambda moment: moment.replace(second=0, microsecond=0, tzinfo=UTC)
)


def nth_sunday(year: int, month: int, nth: int) -> date:
    """Return the nth Sunday of a month, or the last one for -1."""
    sundays = [
        day
        for day in (date(year, month, 1) + timedelta(days=number) for number in range(31))
        if day.month == month and day.isoweekday() == 7
    ]
    return sundays[nth - 1 if nth > 0 else nth]


def at_utc(day: date, hour: int) -> datetime:
    """Return an hour of a day in UTC."""
    return datetime(day.year, day.month, day.day, hour, tzinfo=UTC)


def berlin(moment: datetime) -> datetime:
    """Return the time in Berlin; summer time runs from the last Sunday of March to October's."""
    begins = at_utc(nth_sunday(moment.year, 3, -1), 1)
    ends = at_utc(nth_sunday(moment.year, 10, -1), 1)
    hours = 2 if begins <= moment < ends else 1
    return (moment + timedelta(hours=hours)).replace(tzinfo=None)


def new_york(moment: datetime) -> datetime:
    """Return the time in New York; since 2007 summer time starts on March's second Sunday."""
    begins = at_utc(nth_sunday(moment.year, 3, 2), 7)
    ends = at_utc(nth_sunday(moment.year, 11, 1), 6)
    hours = 4 if begins <= moment < ends else 5
    return (moment - timedelta(hours=hours)).replace(tzinfo=None)


async def found(
    calendar: Calendar, context: ToolContext, operation: str, **args: Any
) -> Mapping[str, Any]:
    """Run one operation."""
    return await calendar.run({"operation": operation, **args}, context)


CONVERTED = [
    # Neither country had summer time on that day: 8 hours apart.
    ("2025-03-03T15:00", BERLIN, "Asia/Tokyo", "2025-03-03T23:00:00+09:00"),
    ("2025-03-03 3 pm", BERLIN, "Asia/Tokyo", "2025-03-03T23:00:00+09:00"),
    ("March 3, 2025 at 3:00 PM", BERLIN, "Asia/Tokyo", "2025-03-03T23:00:00+09:00"),
    ("3 March 2025, 3 p.m.", BERLIN, "Asia/Tokyo", "2025-03-03T23:00:00+09:00"),
    # New York changed on March 9, London on March 30: 4 hours apart, then 5.
    ("2025-03-20 12:00", NEW_YORK, "Europe/London", "2025-03-20T16:00:00+00:00"),
    ("2025-04-20 12:00", NEW_YORK, "Europe/London", "2025-04-20T17:00:00+01:00"),
    ("2025-12-31 20:30", NEW_YORK, "Asia/Kolkata", "2026-01-01T07:00:00+05:30"),
    ("2025-07-01T09:15:30", "UTC", "Asia/Kathmandu", "2025-07-01T15:00:30+05:45"),
    ("2025-07-01 12:00", "UTC", "Australia/Sydney", "2025-07-01T22:00:00+10:00"),
    ("2025-01-01 12:30 am", "UTC", "UTC", "2025-01-01T00:30:00+00:00"),
    ("2025-01-01 12 pm", "UTC", "UTC", "2025-01-01T12:00:00+00:00"),
    ("today 18:00", NEW_YORK, "UTC", "2025-01-14T23:00:00+00:00"),
    ("now", "Asia/Tokyo", NEW_YORK, "2025-01-14T22:00:00-05:00"),
    ("2025-06-01T12:00:00Z", BERLIN, NEW_YORK, "2025-06-01T08:00:00-04:00"),
]


@pytest.mark.req("002/5.2", "002/25.5")
@pytest.mark.parametrize(("date", "here", "there", "iso"), CONVERTED)
async def test_a_time_is_told_in_another_zone(
    calendar: Calendar, context: ToolContext, date: str, here: str, there: str, iso: str
) -> None:
    """The offset is the one of that zone on that day."""
    result = await found(calendar, context, "convert", date=date, timezone=here, to_timezone=there)

    assert (result.get("value"), result.get("timezone")) == (iso, there), result
    assert (result["iso"], result["from_timezone"]) == (iso, here)


@pytest.mark.req("002/25.2")
async def test_an_instant_is_told_in_words_with_its_weekday_and_zone(
    calendar: Calendar, context: ToolContext
) -> None:
    """The time of day is also a separate field."""
    args = {"date": "2025-03-03T15:00", "timezone": BERLIN, "to_timezone": "Asia/Tokyo"}
    result = await found(calendar, context, "convert", **args)

    assert result["text"] == "Monday, March 3, 2025, 23:00 (Asia/Tokyo, UTC+09:00)"
    assert (result["time"], result["weekday"]) == ("23:00", "Monday")


@pytest.mark.req("002/25.1", "002/25.5")
async def test_now_is_what_clocks_show_in_the_zone(
    calendar: Calendar, context: ToolContext
) -> None:
    """The current time is shown in the run's zone unless another zone is given."""
    here = await found(calendar, context, "now")
    there = await found(calendar, context, "now", timezone="Asia/Tokyo")

    assert here["text"] == "Tuesday, January 14, 2025, 22:00 (America/New_York, UTC-05:00)"
    assert there["value"] == "2025-01-15T12:00:00+09:00"


@pytest.mark.req("002/25.4")
@pytest.mark.parametrize(
    ("date", "zone", "code", "readings"),
    [
        (
            "2025-10-26T02:30",
            BERLIN,
            "ambiguous_date",
            ["2025-10-26T02:30:00+02:00", "2025-10-26T02:30:00+01:00"],
        ),
        (
            "Nov 2, 2025 1:59 am",
            NEW_YORK,
            "ambiguous_date",
            ["2025-11-02T01:59:00-04:00", "2025-11-02T01:59:00-05:00"],
        ),
        (
            "2025-03-30T02:30",
            BERLIN,
            "invalid_date",
            ["2025-03-30T01:30:00+01:00", "2025-03-30T03:30:00+02:00"],
        ),
        (
            "March 9, 2025 2 am",
            NEW_YORK,
            "invalid_date",
            ["2025-03-09T01:00:00-05:00", "2025-03-09T03:00:00-04:00"],
        ),
    ],
)
async def test_a_time_that_comes_twice_or_never_is_refused_with_both_readings(
    calendar: Calendar,
    context: ToolContext,
    date: str,
    zone: str,
    code: str,
    readings: list[str],
) -> None:
    """The message offers both readings, and each one is accepted as one instant."""
    result = await found(calendar, context, "convert", date=date, timezone=zone, to_timezone="UTC")
    instants = [
        await found(calendar, context, "convert", date=reading, timezone=zone, to_timezone="UTC")
        for reading in readings
    ]

    assert result["code"] == code
    assert " or ".join(readings) in result["error"]
    assert instants[0]["value"] < instants[1]["value"]


@pytest.mark.parametrize(
    ("date", "zone"),
    [
        ("2025-10-26T01:59", BERLIN),
        ("2025-10-26T03:00", BERLIN),
        ("2025-03-30T01:59", BERLIN),
        ("2025-03-30T03:00", BERLIN),
        ("2025-11-02T02:00", NEW_YORK),
        ("2025-03-09T03:00", NEW_YORK),
    ],
)
async def test_the_times_next_to_a_change_are_read(
    calendar: Calendar, context: ToolContext, date: str, zone: str
) -> None:
    """Only the hour of the change itself is rejected."""
    result = await found(calendar, context, "convert", date=date, timezone=zone, to_timezone=zone)

    assert result["value"].startswith(date)


@pytest.mark.req("002/25.5")
@shared
@given(moment=moments)
async def test_clocks_are_told_as_the_law_sets_them(
    calendar: Calendar, context: ToolContext, moment: datetime
) -> None:
    """Times are converted from UTC to two zones and, if unambiguous, between the zones."""
    for zone, shown in ((BERLIN, berlin), (NEW_YORK, new_york)):
        told = await found(calendar, context, "convert", date=moment.isoformat(), to_timezone=zone)
        assert told["value"][:19] == shown(moment).isoformat()
    hour = timedelta(hours=1)
    local = berlin(moment)
    again = await found(
        calendar,
        context,
        "convert",
        date=local.isoformat(),
        timezone=BERLIN,
        to_timezone=NEW_YORK,
    )
    if local in {berlin(moment - hour), berlin(moment + hour)}:
        assert again["code"] == "ambiguous_date"
    else:
        assert again["value"][:19] == new_york(moment).isoformat()


@pytest.mark.parametrize(
    "date",
    ["2025-03-03T10:00 05:30", "2025-03-03 1000 3 pm", "2025-03-03T10:00Z, 3 pm"],
)
async def test_a_date_with_two_times_is_refused(
    calendar: Calendar, context: ToolContext, date: str
) -> None:
    """A regression test: the first of these lost the sign of its offset."""
    result = await found(calendar, context, "convert", date=date, to_timezone="UTC")

    assert result["code"] == "invalid_date"
    assert "two times of day" in result["error"]


ELAPSED = [
    ({"date": "2025-03-01 10:00", "end_date": "2025-03-02 12:30", "unit": "hours"}, "26.5"),
    ({"date": "2025-03-02 12:30", "end_date": "2025-03-01 10:00", "unit": "minutes"}, "1590"),
    ({"date": "2025-01-01T00:00", "end_date": "2025-01-02T00:00:01", "unit": "seconds"}, "86401"),
    ({"date": "2025-01-01T00:00", "end_date": "2025-01-08T12:00", "unit": "days"}, "7.5"),
    ({"date": "2025-01-01T09:00", "end_date": "2025-01-01T10:40", "unit": "hours"}, "1.666667"),
    ({"date": "2025-01-01T09:00", "end_date": "2025-01-01T09:00", "unit": "hours"}, "0"),
    # Clocks in Berlin go forward on 30 March 2025 and back on 26 October.
    (
        {
            "date": "2025-03-29T12:00",
            "end_date": "2025-03-30T12:00",
            "unit": "hours",
            "timezone": BERLIN,
        },
        "23",
    ),
    (
        {
            "date": "2025-10-25T12:00",
            "end_date": "2025-10-26T12:00",
            "unit": "hours",
            "timezone": BERLIN,
        },
        "25",
    ),
    # A flight: 10:00 in Berlin is 9:00 UTC, 13:00 in New York is 18:00 UTC.
    (
        {
            "date": "2025-01-10T10:00",
            "end_date": "2025-01-10T13:00",
            "unit": "hours",
            "timezone": BERLIN,
            "to_timezone": NEW_YORK,
        },
        "9",
    ),
    ({"date": "now", "end_date": "2025-01-15T04:30:00Z", "unit": "minutes"}, "90"),
    ({"date": "2025-01-01T00:00", "end_date": "2025-01-01T00:00:06.5", "unit": "seconds"}, "6.5"),
    ({"date": "2025-01-01T00:00", "end_date": "2025-01-03T01:00"}, "49"),
]


@pytest.mark.req("002/5.2", "002/25.5")
@pytest.mark.parametrize(("args", "value"), ELAPSED)
async def test_the_time_between_two_instants_is_exact(
    calendar: Calendar, context: ToolContext, args: dict[str, Any], value: str
) -> None:
    """Changes of the clocks in between do not matter."""
    result = await found(calendar, context, "elapsed", **args)

    assert result.get("value") == value, result
    assert ("note" in result) == (value == "1.666667")


@shared
@given(
    moment=moments,
    amount=st.integers(-40_000, 40_000),
    unit=st.sampled_from(["hours", "minutes", "seconds"]),
)
async def test_what_is_added_is_what_has_elapsed(
    calendar: Calendar, context: ToolContext, moment: datetime, amount: int, unit: str
) -> None:
    """Hours are added as elapsed time and not as clock time."""
    length = timedelta(**{unit: amount})
    args = {"date": moment.isoformat(), "amount": amount, "unit": unit, "timezone": BERLIN}
    added = await found(calendar, context, "add", **args)
    back = await found(calendar, context, "subtract", **{**args, "date": added["iso"]})
    passed = await found(
        calendar, context, "elapsed", date=moment.isoformat(), end_date=added["iso"]
    )

    assert added["iso"][:19] == berlin(moment + length).isoformat()
    assert back["iso"][:19] == berlin(moment).isoformat()
    assert passed["seconds"] == str(abs(round(length.total_seconds())))


REFUSED = [
    ("convert", {"date": "2025-03-03", "to_timezone": "UTC"}, "needs a time"),
    ("convert", {"date": "March 3, 2025", "to_timezone": "UTC"}, "needs a time"),
    ("convert", {"date": "2025-03-03T15:00"}, "needs to_timezone"),
    ("convert", {"date": "2025-03-03T15:00", "to_timezone": "Tokyo"}, "IANA"),
    ("convert", {"date": "2025-03-03T15:00", "to_timezone": 5}, "type string"),
    ("convert", {"date": "3/4/2025 15:00", "to_timezone": "UTC"}, "can be read as"),
    ("convert", {"date": "March 3, 2025 13 pm", "to_timezone": "UTC"}, "time of day"),
    ("convert", {"date": "March 3, 2025 24:30", "to_timezone": "UTC"}, "time of day"),
    ("convert", {"date": "midnight on March 3, 2025", "to_timezone": "UTC"}, "needs a time"),
    ("convert", {"date": "2025-02-30T15:00", "to_timezone": "UTC"}, "2025"),
    ("convert", {"date": "15:00", "to_timezone": "UTC"}, "needs a time"),
    ("convert", {"date": "9999-12-31T23:00", "to_timezone": "Asia/Tokyo"}, "outside"),
    ("convert", {"date": "0001-01-01T00:00", "timezone": "Asia/Tokyo", "to_timezone": "UTC"}, ""),
    ("elapsed", {"date": "2025-03-03", "end_date": "2025-03-04"}, "needs a time"),
    ("elapsed", {"date": "now", "end_date": "now", "unit": "months"}, "one of"),
    ("elapsed", {"date": "now", "end_date": "now", "unit": 3}, "must be"),
    ("add", {"date": "2025-03-03", "amount": 3, "unit": "hours"}, "needs a time"),
    ("add", {"date": "9999-12-31T23:00", "amount": 24, "unit": "hours"}, "outside"),
    ("difference", {"date": "2025-03-03", "end_date": "2025-03-04", "unit": "hours"}, "elapsed"),
    ("now", {"date": "2025-03-03"}, "leave it out"),
]


@pytest.mark.req("002/5.5", "002/25.4")
@pytest.mark.parametrize(("operation", "args", "told"), REFUSED)
async def test_a_time_that_cannot_be_used_is_refused_with_what_to_write(
    calendar: Calendar, context: ToolContext, operation: str, args: dict[str, Any], told: str
) -> None:
    """The error names a valid format; no exception is raised and nothing is guessed."""
    result = await found(calendar, context, operation, **args)

    assert "value" not in result
    assert told in result["error"]


written = st.sampled_from(
    ["now", "2025-01-15T10:00", "2025-03-30 02:30", "3 pm", "noon", "today 9:00", "9 am tomorrow"]
)


@pytest.mark.req("002/5.5")
@shared
@given(
    operation=st.sampled_from(["convert", "elapsed", "add", "subtract", "now"]),
    args=st.fixed_dictionaries(
        {},
        optional={
            "date": written | st.text(max_size=80) | st.integers(),
            "end_date": written | st.text(max_size=80) | st.none(),
            "amount": st.integers(-(10**7), 10**7),
            "unit": st.sampled_from(["hours", "seconds", "days", "x"]) | st.none(),
            "to_timezone": st.sampled_from(["UTC", BERLIN, "x"]) | st.text(max_size=5),
        },
    ),
)
async def test_no_times_make_the_calendar_raise(
    calendar: Calendar, context: ToolContext, operation: str, args: dict[str, Any]
) -> None:
    """Any arguments give a value or an error."""
    result = await calendar.run({"operation": operation, **args}, context)

    assert ("value" in result) != ("error" in result)
