"""Registry of the calendar tool's operations.

Parses their arguments relative to the current time and zone.
"""

import calendar
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from fractions import Fraction
from functools import partial
from types import MappingProxyType
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from caseworker.tools.ports import ToolRefusedError, ToolResult
from caseworker_cases.tools.arithmetic.real import decimal_text
from caseworker_cases.tools.dates import calculation
from caseworker_cases.tools.dates.calculation import (
    MONTHS,
    UNITS,
    WEEKDAYS,
    Unit,
    in_words,
    joined,
    outside_years,
    weekday_name,
    with_unit,
)
from caseworker_cases.tools.dates.reader import DateReader, instant_of, iso_moment, split_time

RELATIVE_DAYS: Mapping[str, int] = {"yesterday": -1, "today": 0, "tomorrow": 1}
"""Maps words for relative dates to their distance from today, in days."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """Typed access to arguments that already match the calendar tool's schema.

    Methods raise ``ToolRefusedError`` for values that the schema cannot check: dates, instants,
    units and time zones.
    """

    args: Mapping[str, Any]
    reader: DateReader
    zone: ZoneInfo
    now: datetime
    """Current time, timezone-aware. Today is its date in ``zone``."""

    def weekday(self) -> int:
        """Return the weekday argument as a number from 0 (Monday) to 6 (Sunday)."""
        return WEEKDAYS.index(self.args["weekday"])

    def unit(self, default: Unit | None = None) -> Unit:
        """Return the unit argument, or ``default`` if it was not given."""
        name = self.args.get("unit", default)
        for unit in UNITS:
            if unit == name:
                return unit
        raise ToolRefusedError(
            f"'unit' must be one of {', '.join(UNITS)}; elapsed counts hours and shorter between "
            "two dates with a time"
        )

    def today(self) -> date:
        """Return today's date in the time zone."""
        return self.now.astimezone(self.zone).date()

    def day(self, name: str = "date") -> date:
        """Parse a date argument."""
        return self._day_in(self.args[name])

    def _day_in(self, text: str) -> date:
        distance = RELATIVE_DAYS.get(text.strip().lower())
        if distance is None:
            return self.reader.read(text, self.zone)
        return self.today() + timedelta(days=distance)

    def moment(self, name: str = "date") -> datetime:
        """Parse an argument as an instant; a time without an offset is local to ``zone``."""
        text = " ".join(self.args[name].split())
        if text.lower() == "now":
            return self.now.astimezone(self.zone).replace(microsecond=0)
        moment = iso_moment(text) if text.isascii() else None
        try:
            if moment is None:
                parts = split_time(text) if text.isascii() else None
                if parts is None:
                    raise ToolRefusedError(
                        f"'{name}' needs a time of day, such as 2025-09-08T15:30, or now"
                    )
                moment = datetime.combine(self._day_in(parts[0]), parts[1])
            if moment.tzinfo is not None:
                return moment.astimezone(self.zone)
            return instant_of(moment, self.zone)
        except OverflowError:
            raise outside_years() from None

    def in_zone(self, name: str) -> "Inputs":
        """Return a copy of the inputs in the time zone that an argument names."""
        return replace(self, zone=zone_named(self.args[name]))


def zone_named(name: str) -> ZoneInfo:
    """Return the time zone with this IANA name.

    Raises:
        ToolRefusedError: the time zone is unknown.
    """
    try:
        if name:
            return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        pass
    raise ToolRefusedError(
        "the time zone is not known; give an IANA name such as Europe/Paris or UTC",
        code="unknown_timezone",
    )


def in_utc(moment: datetime) -> datetime:
    """Convert an instant to UTC, because Python compares times in the same zone by wall clock."""
    try:
        return moment.astimezone(UTC)
    except OverflowError:
        raise outside_years() from None


CLOCK_UNITS = ("hours", "minutes", "seconds")
"""Units for durations between instants. They do not apply to dates."""
UNIT_SECONDS: Mapping[str, int] = MappingProxyType(
    {"weeks": 604_800, "days": 86_400, "hours": 3600, "minutes": 60, "seconds": 1}
)
"""Length of each fixed-length unit in seconds. A day between two instants is 24 hours."""
DECIMALS = 6
"""Number of decimals to which an elapsed time is rounded."""
_MICROSECOND = timedelta(microseconds=1)


@dataclass(frozen=True, slots=True)
class Operation:
    """A calendar operation, with the names of its required and optional arguments."""

    perform: Callable[[Inputs], ToolResult]
    needs: str = ""
    takes: str = ""


def perform(operation: str, inputs: Inputs) -> ToolResult:
    """Validate the arguments for an operation and run it.

    Raises:
        ToolRefusedError: an argument is missing, unused or invalid.
    """
    definition = OPERATIONS[operation]
    names = inputs.args.keys() - {"operation", "timezone"}
    needs, accepts = set(definition.needs.split()), set(definition.takes.split())
    if missing := sorted(needs - names):
        raise ToolRefusedError(f"operation {operation} needs {', '.join(missing)}")
    if unused := sorted(names - needs - accepts):
        raise ToolRefusedError(
            f"operation {operation} does not use {', '.join(unused)}; leave it out"
        )
    return definition.perform(inputs)


def _day(day: date) -> ToolResult:
    iso = day.isoformat()
    return {"value": iso, "text": in_words(day), "iso": iso, "weekday": weekday_name(day)}


def _moment(moment: datetime, zone: ZoneInfo) -> ToolResult:
    """Return an instant with its offset and in words, as local time in ``zone``."""
    try:
        local = in_utc(moment).astimezone(zone)
    except OverflowError:
        raise outside_years() from None
    iso = local.isoformat()
    time = local.time().isoformat(timespec="auto" if local.second else "minutes")
    offset = local.isoformat(timespec="seconds")[19:]
    place = zone.key if zone.key == "UTC" else f"{zone.key}, UTC{offset}"
    return {
        "value": iso,
        "text": f"{in_words(local)}, {time} ({place})",
        "iso": iso,
        "weekday": weekday_name(local),
        "time": time,
        "timezone": zone.key,
    }


def _shift(inputs: Inputs, sign: int) -> ToolResult:
    amount = sign * int(inputs.args["amount"])
    unit = inputs.args["unit"]
    if unit not in CLOCK_UNITS:
        return _day(calculation.shifted(inputs.day(), amount, inputs.unit()))
    try:
        later = in_utc(inputs.moment()) + timedelta(seconds=amount * UNIT_SECONDS[unit])
    except OverflowError:
        raise outside_years() from None
    return _moment(later, inputs.zone)


def _weekday(inputs: Inputs) -> ToolResult:
    day = inputs.day()
    if ("amount" in inputs.args) != ("unit" in inputs.args):
        raise ToolRefusedError("operation weekday takes amount and unit together, or neither")
    if "amount" in inputs.args:
        day = calculation.shifted(day, int(inputs.args["amount"]), inputs.unit())
    # The answer to "which weekday" is only its name; the full date is a separate field.
    name = weekday_name(day)
    return {"value": name, "text": name, "iso": day.isoformat(), "date": in_words(day)}


def _ends(start: date, end: date) -> ToolResult:
    return {"date": start.isoformat(), "end_date": end.isoformat()}


def _difference(inputs: Inputs) -> ToolResult:
    start, end = sorted((inputs.day(), inputs.day("end_date")))
    return _distance(start, end, inputs)


def _until(inputs: Inputs) -> ToolResult:
    """Count like ``difference``, with a minus sign and ``ago`` if the end is before the start."""
    if inputs.args.keys().isdisjoint({"date", "end_date"}):
        raise ToolRefusedError("operation until needs date, end_date or both")
    start, end = (
        inputs.day(name) if name in inputs.args else inputs.today() for name in ("date", "end_date")
    )
    result = _distance(min(start, end), max(start, end), inputs)
    if end < start:
        value = result["value"]
        result |= {"value": value if value == "0" else f"-{value}", "text": f"{result['text']} ago"}
    return result | _ends(start, end)


def _distance(start: date, end: date, inputs: Inputs) -> ToolResult:
    """Count whole units from ``start`` to a later ``end``; the text includes the remainder."""
    unit = inputs.unit(default="days")
    if unit == "business_days":
        raise ToolRefusedError(
            "business days between two dates are counted in several ways; use days, or"
            " count_business_days, which includes both dates"
        )
    days = (end - start).days
    if unit in {"months", "years"}:
        months, rest = calculation.whole_months_between(start, end)
        units, months_left = divmod(months, 12) if unit == "years" else (months, 0)
        parts = [(months_left, "month"), (rest, "day")]
    else:
        units, rest = divmod(days, 7) if unit == "weeks" else (days, 0)
        parts = [(rest, "day")]
    rest_texts = [with_unit(number, name) for number, name in parts if number]
    text = joined([with_unit(units, unit[:-1]), *rest_texts])
    return {"value": str(units), "text": text, "unit": unit, "days": days, **_ends(start, end)}


def _elapsed(inputs: Inputs) -> ToolResult:
    """Return the time between two instants; ``to_timezone`` is the zone of the second one.

    A day is 24 hours, so a day on which clocks go forward counts as 23 hours.
    """
    end_inputs = inputs.in_zone("to_timezone") if "to_timezone" in inputs.args else inputs
    one, other = inputs.moment(), end_inputs.moment("end_date")
    seconds = Fraction(abs(in_utc(other) - in_utc(one)) // _MICROSECOND, 1_000_000)
    unit = inputs.args.get("unit", "hours")
    if unit not in UNIT_SECONDS:
        raise ToolRefusedError(
            f"'unit' of an elapsed time must be one of {', '.join(UNIT_SECONDS)}"
        )
    exact = seconds / UNIT_SECONDS[unit]
    value = decimal_text(round(exact, DECIMALS))[0]
    result: ToolResult = {
        "value": value,
        "text": with_unit(value, unit[:-1]),
        "unit": unit,
        "seconds": decimal_text(seconds)[0],
        "date": one.isoformat(),
        "end_date": other.isoformat(),
    }
    if round(exact, DECIMALS) != exact:
        result["note"] = f"The value is rounded to {DECIMALS} decimals; the seconds are exact."
    return result


def _convert(inputs: Inputs) -> ToolResult:
    moment = inputs.moment()
    target = _moment(moment, inputs.in_zone("to_timezone").zone)
    return target | {"from": moment.isoformat(), "from_timezone": inputs.zone.key}


def _count_business_days(inputs: Inputs) -> ToolResult:
    start, end = sorted((inputs.day(), inputs.day("end_date")))
    count = calculation.count_of_business_days(start, end)
    both = f"from {in_words(start)} to {in_words(end)}, both included"
    text = f"{with_unit(count, 'business day')} {both}"
    return {"value": str(count), "text": text, **_ends(start, end)}


def _days_in_year(inputs: Inputs) -> ToolResult:
    year = int(inputs.args["year"])
    days = 366 if calendar.isleap(year) else 365
    return {"value": str(days), "text": f"{year} has {days} days"}


def _leap_year(inputs: Inputs) -> ToolResult:
    year = int(inputs.args["year"])
    leap = calendar.isleap(year)
    answer = "yes" if leap else "no"
    return {"value": answer, "text": answer, "year": year, "leap_year": leap}


def _days_in_month(inputs: Inputs) -> ToolResult:
    year, month = int(inputs.args["year"]), int(inputs.args["month"])
    days = calculation.days_in_month(year, month)
    return {"value": str(days), "text": f"{MONTHS[month - 1]} {year} has {days} days"}


def _end_of_month(inputs: Inputs) -> ToolResult:
    names = inputs.args.keys() & {"date", "year", "month"}
    if names not in ({"date"}, {"year", "month"}):
        raise ToolRefusedError("operation end_of_month needs either date, or year and month")
    if names == {"date"}:
        day = inputs.day()
        return _day(calculation.end_of_month(day.year, day.month))
    return _day(calculation.end_of_month(int(inputs.args["year"]), int(inputs.args["month"])))


def _nth_weekday(inputs: Inputs) -> ToolResult:
    year, month, nth = (int(inputs.args[name]) for name in ("year", "month", "nth"))
    return _day(calculation.nth_weekday(year, month, inputs.weekday(), nth))


def _next_weekday(inputs: Inputs, *, forward: bool) -> ToolResult:
    return _day(calculation.next_weekday(inputs.day(), inputs.weekday(), forward=forward))


_AFTER, _BEFORE = partial(_next_weekday, forward=True), partial(_next_weekday, forward=False)

OPERATIONS: Mapping[str, Operation] = MappingProxyType(
    {
        "add": Operation(lambda inputs: _shift(inputs, 1), "date amount unit"),
        "convert": Operation(_convert, "date to_timezone"),
        "count_business_days": Operation(_count_business_days, "date end_date"),
        "days_in_month": Operation(_days_in_month, "year month"),
        "days_in_year": Operation(_days_in_year, "year"),
        "difference": Operation(_difference, "date end_date", "unit"),
        "elapsed": Operation(_elapsed, "date end_date", "unit to_timezone"),
        "end_of_month": Operation(_end_of_month, takes="date year month"),
        "leap_year": Operation(_leap_year, "year"),
        "normalise": Operation(lambda inputs: _day(inputs.day()), "date"),
        "now": Operation(lambda inputs: _moment(inputs.now.replace(microsecond=0), inputs.zone)),
        "nth_weekday": Operation(_nth_weekday, "year month weekday nth"),
        "subtract": Operation(lambda inputs: _shift(inputs, -1), "date amount unit"),
        "today": Operation(lambda inputs: _day(inputs.today())),
        "until": Operation(_until, takes="date end_date unit"),
        "weekday": Operation(_weekday, "date", "amount unit"),
        "weekday_after": Operation(_AFTER, "date weekday"),
        "weekday_before": Operation(_BEFORE, "date weekday"),
    }
)
