"""The calendar tool."""

from collections.abc import Mapping
from datetime import MAXYEAR, MINYEAR
from typing import Any

from app.tools.arguments import CheckedTool, choice, object_of, text, whole
from app.tools.crosschecks import dates
from app.tools.dates.calculation import UNITS, WEEKDAYS
from app.tools.dates.inputs import Inputs, zone_named
from app.tools.dates.operations import CLOCK_UNITS, OPERATIONS, perform
from app.tools.dates.reader import MAX_LENGTH, DateReader
from app.tools.ports import ToolContext, ToolFunction, ToolResult, ToolSpec

MAX_AMOUNT = 4_000_000
"""More days than there are between the first and the last date."""

_DATE = text(
    MAX_LENGTH,
    "Best as YYYY-MM-DD, or YYYY-MM-DDTHH:MM with a time; also 'March 5, 2024', 'March 5, 2024 "
    "3 pm', today, tomorrow, yesterday or, as a time, now",
)

_FUNCTIONS = (
    ToolFunction(
        name="calendar.date_after",
        takes="date amount unit",
        fixed={"operation": "add"},
        schemas={"amount": whole(0, MAX_AMOUNT), "unit": choice(UNITS)},
    ),
    ToolFunction(
        name="calendar.date_before",
        takes="date amount unit",
        fixed={"operation": "subtract"},
        schemas={"amount": whole(0, MAX_AMOUNT), "unit": choice(UNITS)},
    ),
    ToolFunction(
        name="calendar.time_between",
        takes="date end_date unit",
        fixed={"operation": "difference"},
        schemas={"unit": choice(("days", "weeks", "months", "years"))},
    ),
    ToolFunction(
        name="calendar.count_business_days",
        takes="date end_date",
        fixed={"operation": "count_business_days"},
    ),
    ToolFunction(
        name="calendar.day_of_week",
        takes="date",
        fixed={"operation": "weekday"},
    ),
    ToolFunction(
        name="calendar.full_date",
        takes="date",
        fixed={"operation": "normalise"},
    ),
    ToolFunction(
        name="calendar.nth_weekday",
        takes="year month weekday nth",
        description="-1: last",
        fixed={"operation": "nth_weekday"},
    ),
    ToolFunction(
        name="calendar.weekday_after",
        takes="date weekday",
        fixed={"operation": "weekday_after"},
    ),
    ToolFunction(
        name="calendar.weekday_before",
        takes="date weekday",
        fixed={"operation": "weekday_before"},
    ),
    ToolFunction(
        name="calendar.days_in_month",
        takes="year month",
        fixed={"operation": "days_in_month"},
    ),
    ToolFunction(
        name="calendar.last_day_of_month",
        takes="year month",
        fixed={"operation": "end_of_month"},
    ),
    ToolFunction(
        name="calendar.leap_year",
        takes="year",
        fixed={"operation": "leap_year"},
    ),
    ToolFunction(
        name="calendar.days_in_year",
        takes="year",
        fixed={"operation": "days_in_year"},
    ),
    ToolFunction(
        name="calendar.today",
        takes="timezone?",
        fixed={"operation": "today"},
    ),
    ToolFunction(
        name="calendar.now",
        takes="timezone?",
        fixed={"operation": "now"},
    ),
)


class Calendar(CheckedTool):
    """Date arithmetic on structured arguments; a Tool.

    The result is ``{"value": ISO date or number, "text": in words, "timezone": zone, …}``. The
    zone is the argument ``timezone`` if there is one and the run's zone otherwise; a converted time
    has the zone that it was converted to. Refusals have the codes ``invalid_date``,
    ``ambiguous_date``, ``unknown_timezone``, ``invalid_arguments`` or ``out_of_range``.
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
            amount=whole(-MAX_AMOUNT, MAX_AMOUNT),
            unit=choice([*UNITS, *CLOCK_UNITS]),
            year=whole(MINYEAR, MAXYEAR),
            month=whole(1, 12),
            weekday=choice(WEEKDAYS),
            nth={"type": "integer", "enum": [1, 2, 3, 4, 5, -1], "description": "-1 is last"},
            timezone=text(
                MAX_LENGTH,
                "IANA name of the zone in which today begins and times are read",
                least=0,
            ),
            to_timezone=text(
                MAX_LENGTH, "IANA name of the zone to convert to, or of end_date in elapsed"
            ),
        ),
        functions=_FUNCTIONS,
    )

    def __init__(self) -> None:
        """Load and warm the date parser, which takes about 0.3 s."""
        super().__init__()
        self._reader = DateReader()

    async def answer(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Return the result of ``args["operation"]``."""
        zone = zone_named(args.get("timezone", context.timezone))
        result = perform(args["operation"], Inputs(args, self._reader, zone, context.now))
        return {"timezone": zone.key} | result

    async def agrees(
        self, args: Mapping[str, Any], result: ToolResult, context: ToolContext
    ) -> bool | None:
        """Return whether counting by day numbers comes to the value, too."""
        return dates.agrees(args, result, context)
