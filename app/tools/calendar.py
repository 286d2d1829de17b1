"""The calendar tool."""

from collections.abc import Mapping
from typing import Any

from app.tools.dates.calculation import CLOCK_UNITS, MAX_AMOUNT, UNITS
from app.tools.dates.inputs import Inputs, zone_named
from app.tools.dates.operations import OPERATIONS, perform
from app.tools.dates.reader import MAX_LENGTH, DateReader
from app.tools.dates.refusal import DateRefusedError
from app.tools.dates.wording import WEEKDAYS
from app.tools.ports import ToolContext, ToolResult, ToolSpec, failure

_DATE = {
    "type": "string",
    "minLength": 1,
    "maxLength": MAX_LENGTH,
    "description": (
        "Best as YYYY-MM-DD, or YYYY-MM-DDTHH:MM with a time; also 'March 5, 2024', 'March 5, 2024 "
        "3 pm', today, tomorrow, yesterday or, as a time, now"
    ),
}
_SPEC = ToolSpec(
    name="calendar",
    deterministic=True,
    description=(
        "Works with dates and times. Operations and their arguments: today; now; normalise(date); "
        "weekday(date, and optionally amount and unit to add first); week_number (ISO 8601), "
        "day_of_year and quarter(date); add and subtract(date, amount, unit), hours and shorter to "
        "a date with a time; difference(date, end_date, unit), never negative; until(date, "
        "end_date, unit), each date today unless given, negative if end_date is earlier; "
        "elapsed(date, end_date, unit), the exact time between two dates with a time; "
        "convert(date with a time, to_timezone), timezone is the one it is told in; count_weekday("
        "date, end_date, weekday) and count_business_days(date, end_date), both ends included; "
        "earlier and later(date, end_date), which one that is; leap_year and days_in_year(year); "
        "days_in_month(year, month); end_of_month(date, or year and month); nth_weekday(year, "
        "month, weekday, nth); weekday_after and weekday_before(date, weekday). Returns value, "
        "text such as 'Monday, September 8, 2025' and, for a date, iso. What can be read in two "
        "ways is refused; months that are too short end a count on their last day; business "
        "days are Monday to Friday, holidays are not considered."
    ),
    parameters={
        "type": "object",
        "additionalProperties": False,
        "required": ["operation"],
        "properties": {
            "operation": {"type": "string", "enum": list(OPERATIONS)},
            "date": _DATE,
            "end_date": _DATE,
            "amount": {"type": "integer", "minimum": -MAX_AMOUNT, "maximum": MAX_AMOUNT},
            "unit": {"type": "string", "enum": [*UNITS, *CLOCK_UNITS]},
            "year": {"type": "integer", "minimum": 1, "maximum": 9999},
            "month": {"type": "integer", "minimum": 1, "maximum": 12},
            "weekday": {"type": "string", "enum": list(WEEKDAYS)},
            "nth": {"type": "integer", "minimum": -1, "maximum": 5, "description": "-1 is last"},
            "timezone": {
                "type": "string",
                "maxLength": MAX_LENGTH,
                "description": "IANA name of the zone in which today begins and times are read",
            },
            "to_timezone": {
                "type": "string",
                "maxLength": MAX_LENGTH,
                "description": "IANA name of the zone to convert to, or of end_date in elapsed",
            },
        },
    },
)


class Calendar:
    """Date arithmetic on structured arguments; a Tool (seed 002, 5.2 and 25).

    The result is ``{"value": ISO date or number, "text": in words, "timezone": zone, …}``. The
    zone is the argument ``timezone`` if there is one and the run's zone otherwise; a converted time
    names the zone that it is told in.
    """

    spec = _SPEC

    def __init__(self) -> None:
        """Load and warm the date parser, which takes about 0.3 s."""
        self._reader = DateReader()

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Carry out ``args["operation"]``; a refusal is a failure dict with its reason."""
        try:
            zone = zone_named(args.get("timezone", context.timezone))
            inputs = Inputs(args, self._reader, zone, context.now)
            result = perform(str(args.get("operation")), inputs)
        except DateRefusedError as refusal:
            return failure(str(refusal), refusal.code)
        return {"timezone": zone.key} | result
