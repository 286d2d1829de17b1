"""Operations on instants: dates with a time of day and a zone."""

from datetime import UTC, datetime, timedelta
from decimal import ROUND_HALF_UP, Decimal, localcontext
from typing import Any
from zoneinfo import ZoneInfo

from app.tools.dates.calculation import CLOCK_UNITS, UNIT_SECONDS, ClockUnit, instant_after
from app.tools.dates.inputs import Inputs
from app.tools.dates.moments import moment_in_words, time_in_words
from app.tools.dates.refusal import outside_years, unfit
from app.tools.dates.wording import counted, joined, weekday_name
from app.tools.ports import ToolResult

DECIMALS = 6
"""Of a time that is no finite number of the unit it is told in."""
_MICROSECONDS = 1_000_000
_DIGITS = 40


def now(inputs: Inputs) -> ToolResult:
    """Tell the time that a clock in the zone shows."""
    return told_moment(inputs.now.replace(microsecond=0), inputs.zone)


def convert(inputs: Inputs) -> ToolResult:
    """Tell an instant as clocks in another zone show it."""
    moment = inputs.moment()
    there = told_moment(moment, inputs.in_zone("to_timezone").zone)
    return there | {"from": moment.isoformat(), "from_timezone": inputs.zone.key}


def shifted(inputs: Inputs, amount: int, unit: ClockUnit) -> ToolResult:
    """Tell the instant so many hours, minutes or seconds later, whatever clocks do meanwhile."""
    return told_moment(instant_after(inputs.moment(), amount, unit), inputs.zone)


def elapsed(inputs: Inputs) -> ToolResult:
    """Tell the time between two instants; ``to_timezone`` is the zone of the second one.

    Without a unit the value is in words. Days are of 24 hours, which is why a day on which clocks
    are put forward is 23 hours here.
    """
    unit = _unit(inputs)
    there = inputs.in_zone("to_timezone") if inputs.has("to_timezone") else inputs
    one, other = inputs.moment(), there.moment("end_date")
    length = abs(in_utc(other) - in_utc(one))
    words = in_days_and_hours(length)
    result: ToolResult = {"value": words, "text": words, "seconds": seconds_in(length, 1)[0]}
    if unit is not None:
        value, exact = seconds_in(length, UNIT_SECONDS[unit])
        result |= {"value": value, "unit": unit}
        if not exact:
            result["note"] = f"The value is rounded to {DECIMALS} decimals; the seconds are exact."
    return result | {"date": one.isoformat(), "end_date": other.isoformat()}


def _unit(inputs: Inputs) -> str | None:
    if not inputs.has("unit"):
        return None
    unit = inputs.args["unit"]
    if not isinstance(unit, str) or unit not in UNIT_SECONDS:
        raise unfit(f"'unit' of a time that passed must be one of {', '.join(UNIT_SECONDS)}")
    return unit


def told_moment(moment: datetime, zone: ZoneInfo) -> ToolResult:
    """Return an instant as results tell it: with its offset, and in words.

    Raises:
        DateRefusedError: it is before year 1 or after year 9999 there.
    """
    try:
        there = in_utc(moment).astimezone(zone)
    except OverflowError:
        raise outside_years() from None
    iso = there.isoformat()
    told: dict[str, Any] = {"value": iso, "text": moment_in_words(there, zone), "iso": iso}
    return told | {
        "weekday": weekday_name(there),
        "time": time_in_words(there),
        "timezone": zone.key,
    }


def in_utc(moment: datetime) -> datetime:
    """Return an instant in UTC; two times in one zone would be compared as its clocks show them.

    Raises:
        DateRefusedError: it is before year 1 or after year 9999 there.
    """
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise outside_years() from None


def seconds_in(length: timedelta, unit_seconds: int) -> tuple[str, bool]:
    """Return a length in a unit in digits, and whether that is exact."""
    whole = length // timedelta(microseconds=1)
    with localcontext() as context:
        context.prec = _DIGITS
        exact = Decimal(whole) / (_MICROSECONDS * unit_seconds)
        shown = exact.quantize(Decimal(1).scaleb(-DECIMALS), ROUND_HALF_UP)
        told = format(shown, "f")
        return told.rstrip("0").rstrip("."), shown * unit_seconds * _MICROSECONDS == whole


def in_days_and_hours(length: timedelta) -> str:
    """Return ``1 day, 2 hours and 5 minutes``; days are of 24 hours."""
    parts = [(length.days, "day")]
    rest = length.seconds
    for unit in CLOCK_UNITS[:-1]:
        whole, rest = divmod(rest, UNIT_SECONDS[unit])
        parts.append((whole, unit[:-1]))
    told = [counted(number, name) for number, name in parts if number]
    if rest or length.microseconds or not told:
        seconds = seconds_in(timedelta(seconds=rest, microseconds=length.microseconds), 1)[0]
        told.append("1 second" if seconds == "1" else f"{seconds} seconds")
    return joined(told)
