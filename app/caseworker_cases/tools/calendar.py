"""The calendar tool: date arithmetic and conversions."""

from collections.abc import Mapping
from datetime import MAXYEAR, MINYEAR
from typing import Any

from caseworker.tools.arguments import CheckedTool, choice, integer, object_of, text
from caseworker.tools.ports import ToolContext, ToolFunction, ToolResult, ToolSpec
from caseworker_cases.tools.crosschecks import dates
from caseworker_cases.tools.dates.calculation import UNITS, WEEKDAYS
from caseworker_cases.tools.dates.operations import (
    CLOCK_UNITS,
    OPERATIONS,
    Inputs,
    perform,
    zone_named,
)
from caseworker_cases.tools.dates.reader import MAX_LENGTH, DateReader

MAX_AMOUNT = 4_000_000
"""Maximum amount to add to a date, more than the days between the earliest and the latest date."""

_DATE = text(
    MAX_LENGTH,
    "Best as YYYY-MM-DD, or YYYY-MM-DDTHH:MM with a time; also 'March 5, 2024', 'March 5, 2024 "
    "3 pm', today, tomorrow, yesterday or, as a time, now",
)

_AMOUNT = {"amount": integer(0, MAX_AMOUNT), "unit": choice(UNITS)}
_DISTANCE = {"unit": choice(("days", "weeks", "months", "years"))}


def _use(name: str, operation: str, takes: str, **more: Any) -> ToolFunction:
    fixed = {"operation": operation}
    return ToolFunction(name=f"calendar.{name}", takes=takes, fixed=fixed, **more)


_FUNCTIONS = (
    _use("date_after", "add", "date amount unit", schemas=_AMOUNT),
    _use("date_before", "subtract", "date amount unit", schemas=_AMOUNT),
    _use("time_between", "difference", "date end_date unit", schemas=_DISTANCE),
    _use("count_business_days", "count_business_days", "date end_date"),
    _use("day_of_week", "weekday", "date"),
    _use("full_date", "normalise", "date"),
    _use("nth_weekday", "nth_weekday", "year month weekday nth", description="-1: last"),
    _use("weekday_after", "weekday_after", "date weekday"),
    _use("weekday_before", "weekday_before", "date weekday"),
    _use("days_in_month", "days_in_month", "year month"),
    _use("last_day_of_month", "end_of_month", "year month"),
    _use("leap_year", "leap_year", "year"),
    _use("days_in_year", "days_in_year", "year"),
    _use("today", "today", "timezone?"),
    _use("now", "now", "timezone?"),
)


class Calendar(CheckedTool):
    """A Tool for date arithmetic on structured arguments.

    The result is ``{"value": ISO date or number, "text": in words, "timezone": zone, …}``. The zone
    is the argument ``timezone``, or else the run's zone. A converted time has its target zone.
    Error codes are ``invalid_date``, ``ambiguous_date``, ``unknown_timezone``,
    ``invalid_arguments`` and ``out_of_range``.
    """

    spec = ToolSpec(
        name="calendar",
        deterministic=True,
        description=(
            "Works with dates and times. Operations and their arguments: today; now; "
            "normalise(date); weekday(date, and optionally amount and unit to add first); add and "
            "subtract(date, amount, unit), hours and shorter to a date with a time; "
            "difference(date, end_date, unit), never negative; until(date, end_date, unit), each "
            "date today unless given, negative if end_date is earlier; count_business_days(date, "
            "end_date), both ends included; elapsed(date, end_date, unit), the exact time between "
            "two dates with a time, in hours unless told otherwise; convert(date with a time, "
            "to_timezone), timezone is the one it is in; leap_year and days_in_year(year); "
            "days_in_month(year, month); end_of_month(date, or year and month); nth_weekday(year, "
            "month, weekday, nth); weekday_after and weekday_before(date, weekday). Returns value, "
            "text such as 'Monday, September 8, 2025' and, for a date, iso. What can be read in "
            "two ways is refused; months that are too short end a count on their last day; "
            "business days are Monday to Friday, holidays are not considered."
        ),
        parameters=object_of(
            "operation",
            operation=choice(OPERATIONS),
            date=_DATE,
            end_date=_DATE,
            amount=integer(-MAX_AMOUNT, MAX_AMOUNT),
            unit=choice([*UNITS, *CLOCK_UNITS]),
            year=integer(MINYEAR, MAXYEAR),
            month=integer(1, 12),
            weekday=choice(WEEKDAYS),
            nth={"type": "integer", "enum": [1, 2, 3, 4, 5, -1], "description": "-1 is last"},
            timezone=text(
                MAX_LENGTH,
                "IANA name of the zone in which today begins and times are read",
                min_chars=0,
            ),
            to_timezone=text(
                MAX_LENGTH, "IANA name of the zone to convert to, or of end_date in elapsed"
            ),
        ),
        functions=_FUNCTIONS,
    )

    _reader = DateReader()

    async def answer(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Return the result of ``args["operation"]``."""
        zone = zone_named(args.get("timezone", context.timezone))
        await self._reader.load()
        result = perform(args["operation"], Inputs(args, self._reader, zone, context.now))
        return {"timezone": zone.key} | result

    async def agrees(
        self, args: Mapping[str, Any], result: ToolResult, context: ToolContext
    ) -> bool | None:
        """Return whether counting by day numbers gives the same value."""
        return dates.agrees(args, result, context)
