"""The calendar tool: operations, zones, text and refusals."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from caseworker.tools.ports import ToolContext
from caseworker_cases.tools.calendar import Calendar
from caseworker_cases.tools.dates.operations import OPERATIONS

DATES = [
    ({"operation": "today"}, "Tuesday, January 14, 2025"),
    ({"operation": "normalise", "date": "2025-09-08"}, "Monday, September 8, 2025"),
    ({"operation": "normalise", "date": "today"}, "Tuesday, January 14, 2025"),
    ({"operation": "normalise", "date": " Tomorrow "}, "Wednesday, January 15, 2025"),
    ({"operation": "normalise", "date": "yesterday"}, "Monday, January 13, 2025"),
    (
        {"operation": "add", "date": "2025-01-15", "amount": 45, "unit": "days"},
        "Saturday, March 1, 2025",
    ),
    (
        {"operation": "add", "date": "2025-01-31", "amount": 1, "unit": "months"},
        "Friday, February 28, 2025",
    ),
    (
        {"operation": "add", "date": "2024-02-29", "amount": 2.0, "unit": "years"},
        "Saturday, February 28, 2026",
    ),
    (
        {"operation": "subtract", "date": "March 5, 2024", "amount": 3, "unit": "weeks"},
        "Tuesday, February 13, 2024",
    ),
    (
        {"operation": "add", "date": "2025-01-17", "amount": 6, "unit": "business_days"},
        "Monday, January 27, 2025",
    ),
    ({"operation": "end_of_month", "date": "2024-02-10"}, "Thursday, February 29, 2024"),
    ({"operation": "end_of_month", "year": 2023, "month": 2}, "Tuesday, February 28, 2023"),
    (
        {"operation": "nth_weekday", "year": 2025, "month": 5, "weekday": "Friday", "nth": 3},
        "Friday, May 16, 2025",
    ),
    (
        {"operation": "nth_weekday", "year": 2025, "month": 5, "weekday": "Monday", "nth": -1},
        "Monday, May 26, 2025",
    ),
    (
        {"operation": "weekday_after", "date": "2025-01-15", "weekday": "Wednesday"},
        "Wednesday, January 22, 2025",
    ),
    (
        {"operation": "weekday_before", "date": "2025-01-15", "weekday": "Tuesday"},
        "Tuesday, January 14, 2025",
    ),
]

FACTS = [
    ({"operation": "weekday", "date": "July 4, 1976"}, "Sunday", "Sunday"),
    ({"operation": "weekday", "date": "today", "amount": 100, "unit": "days"}, "Thursday", None),
    ({"operation": "difference", "date": "2024-03-01", "end_date": "2024-02-28"}, "2", "2 days"),
    (
        {"operation": "difference", "date": "2024-01-01", "end_date": "2024-01-02"},
        "1",
        "1 day",
    ),
    (
        {
            "operation": "difference",
            "date": "2024-01-01",
            "end_date": "2024-12-31",
            "unit": "weeks",
        },
        "52",
        "52 weeks and 1 day",
    ),
    (
        {
            "operation": "difference",
            "date": "1990-05-20",
            "end_date": "2025-01-15",
            "unit": "years",
        },
        "34",
        "34 years, 7 months and 26 days",
    ),
    (
        {
            "operation": "difference",
            "date": "2024-01-31",
            "end_date": "2024-03-01",
            "unit": "months",
        },
        "1",
        "1 month and 1 day",
    ),
    ({"operation": "until", "end_date": "2026-01-01"}, "352", "352 days"),
    ({"operation": "until", "end_date": "2025-01-04"}, "-10", "10 days ago"),
    ({"operation": "until", "date": "2025-01-04"}, "10", "10 days"),
    ({"operation": "until", "end_date": "today"}, "0", "0 days"),
    ({"operation": "leap_year", "year": 2024}, "yes", "yes"),
    ({"operation": "leap_year", "year": 1900}, "no", "no"),
    ({"operation": "days_in_month", "year": 2023, "month": 2}, "28", "February 2023 has 28 days"),
    ({"operation": "days_in_year", "year": 2024}, "366", "2024 has 366 days"),
    # May 2024 began on a Wednesday.
    (
        {"operation": "count_business_days", "date": "2024-05-01", "end_date": "2024-05-31"},
        "23",
        "23 business days from Wednesday, May 1, 2024 to Friday, May 31, 2024, both included",
    ),
    (
        {"operation": "count_business_days", "date": "2024-05-06", "end_date": "2024-05-04"},
        "1",
        "1 business day from Saturday, May 4, 2024 to Monday, May 6, 2024, both included",
    ),
]

REFUSED = [
    ({}, "invalid_arguments"),
    ({"operation": "guess"}, "invalid_arguments"),
    ({"operation": None}, "invalid_arguments"),
    ({"operation": "add", "date": "2025-01-15"}, "invalid_arguments"),
    ({"operation": "today", "year": 2025}, "invalid_arguments"),
    ({"operation": "end_of_month"}, "invalid_arguments"),
    ({"operation": "end_of_month", "date": "2025-01-15", "year": 2025}, "invalid_arguments"),
    ({"operation": "end_of_month", "year": 2025}, "invalid_arguments"),
    ({"operation": "until"}, "invalid_arguments"),
    ({"operation": "normalise", "date": 20250908}, "invalid_arguments"),
    ({"operation": "leap_year", "year": True}, "invalid_arguments"),
    ({"operation": "leap_year", "year": 0}, "invalid_arguments"),
    ({"operation": "leap_year", "year": 2024.5}, "invalid_arguments"),
    ({"operation": "leap_year", "year": float("nan")}, "invalid_arguments"),
    ({"operation": "leap_year", "year": float("inf")}, "invalid_arguments"),
    ({"operation": "weekday", "date": "2025-01-15", "amount": 3}, "invalid_arguments"),
    (
        {"operation": "add", "date": "2025-01-15", "amount": 1, "unit": "hours"},
        "invalid_arguments",
    ),
    (
        {"operation": "add", "date": "2025-01-15", "amount": 10**9, "unit": "days"},
        "invalid_arguments",
    ),
    (
        {
            "operation": "difference",
            "date": "2025-01-15",
            "end_date": "2025-02-15",
            "unit": "business_days",
        },
        "invalid_arguments",
    ),
    (
        {"operation": "nth_weekday", "year": 2025, "month": 5, "weekday": "Friday", "nth": 0},
        "invalid_arguments",
    ),
    (
        {"operation": "nth_weekday", "year": 2025, "month": 5, "weekday": "Monday", "nth": 5},
        "invalid_date",
    ),
    (
        {"operation": "weekday_after", "date": "2025-01-15", "weekday": "Freitag"},
        "invalid_arguments",
    ),
    ({"operation": "normalise", "date": "2025-02-30"}, "invalid_date"),
    ({"operation": "normalise", "date": "September 8"}, "invalid_date"),
    ({"operation": "normalise", "date": "03/04/2025"}, "ambiguous_date"),
    ({"operation": "today", "timezone": "Mars/Olympus"}, "unknown_timezone"),
    ({"operation": "today", "timezone": "../../etc/passwd"}, "unknown_timezone"),
    ({"operation": "today", "timezone": "America"}, "unknown_timezone"),
    ({"operation": "today", "timezone": ""}, "unknown_timezone"),
    ({"operation": "today", "timezone": "\ud800"}, "invalid_arguments"),
    ({"operation": "today", "timezone": 3}, "invalid_arguments"),
    ({"operation": "add", "date": "9999-12-31", "amount": 1, "unit": "days"}, "out_of_range"),
]


async def asked(calendar: Calendar, context: ToolContext, args: Mapping[str, Any]) -> Any:
    """Run the tool and require JSON."""
    result = await calendar.run(args, context)
    assert json.loads(json.dumps(result)) == result
    return result


@pytest.mark.req("002/5.2", "002/25.2")
@pytest.mark.parametrize(("args", "words"), DATES)
async def test_a_date_is_told_in_words_and_in_iso_form(
    calendar: Calendar, context: ToolContext, args: Mapping[str, Any], words: str
) -> None:
    """'Monday, September 8, 2025' and 2025-09-08 are the same day."""
    result = await asked(calendar, context, args)
    again = await asked(calendar, context, {"operation": "normalise", "date": result["iso"]})

    assert result["text"] == again["text"] == words
    assert result["value"] == result["iso"]


@pytest.mark.req("002/5.2")
@pytest.mark.parametrize(("args", "value", "text"), FACTS)
async def test_a_fact_has_a_value_and_words(
    calendar: Calendar,
    context: ToolContext,
    args: Mapping[str, Any],
    value: str,
    text: str | None,
) -> None:
    """The value is a number as text without a unit; the text adds unit and remainder."""
    result = await asked(calendar, context, args)

    assert result["value"] == value
    assert text is None or result["text"] == text


@pytest.mark.req("002/5.5", "002/25.4")
@pytest.mark.parametrize(("args", "code"), REFUSED)
async def test_a_refusal_is_a_dict_with_a_reason(
    calendar: Calendar, context: ToolContext, args: Mapping[str, Any], code: str
) -> None:
    """No exception is raised, nothing is guessed, and no argument is ignored."""
    result = await asked(calendar, context, args)

    assert (result.get("code"), bool(result.get("error"))) == (code, True)


@pytest.mark.req("002/25.1", "002/9.5")
async def test_without_a_zone_the_run_s_own_zone_holds(
    calendar: Calendar, context: ToolContext
) -> None:
    """In New York it is still the previous day."""
    result = await asked(calendar, context, {"operation": "today"})

    assert (result["iso"], result["timezone"]) == ("2025-01-14", "America/New_York")


@pytest.mark.req("002/25.5")
async def test_a_zone_in_the_arguments_wins(calendar: Calendar, context: ToolContext) -> None:
    """The zone applies to today, relative dates and instants with an offset."""
    tokyo = {"timezone": "Asia/Tokyo"}
    today = await asked(calendar, context, {"operation": "today"} | tokyo)
    tomorrow = await asked(
        calendar, context, {"operation": "normalise", "date": "tomorrow"} | tokyo
    )
    instant = await asked(
        calendar, context, {"operation": "normalise", "date": "2025-01-15T23:00:00Z"} | tokyo
    )

    assert [today["iso"], tomorrow["iso"], instant["iso"]] == [
        "2025-01-15",
        "2025-01-16",
        "2025-01-16",
    ]
    assert today["timezone"] == "Asia/Tokyo"


anything = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=12)
arguments = st.fixed_dictionaries(
    {"operation": st.sampled_from([*OPERATIONS, "x"]) | anything},
    optional={
        "date": st.sampled_from(["today", "2025-01-15", "03/04/2025"]) | anything,
        "end_date": st.sampled_from(["tomorrow", "2025-01-15"]) | anything,
        "amount": st.integers(-5_000_000, 5_000_000) | anything,
        "unit": st.sampled_from(["days", "weeks", "months", "years", "business_days"]) | anything,
        "year": st.integers(-1, 10_000) | anything,
        "month": st.integers(0, 13) | anything,
        "weekday": st.sampled_from(["Monday", "sunday"]) | anything,
        "nth": st.integers(-2, 6) | anything,
        "timezone": st.sampled_from(["UTC", "Europe/Paris"]) | anything,
    },
)


@pytest.mark.req("002/5.5")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(args=arguments)
async def test_no_arguments_make_the_calendar_raise(
    calendar: Calendar, context: ToolContext, args: dict[str, Any]
) -> None:
    """Any arguments give a value or an error."""
    result = await calendar.run(args, context)

    assert ("value" in result) != ("error" in result)
