"""Calendar arithmetic on plain dates and on instants; nothing here knows today or languages."""

import calendar
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from types import MappingProxyType
from typing import Literal, get_args

from app.tools.dates.refusal import DateRefusedError, outside_years

Unit = Literal["days", "weeks", "months", "years", "business_days"]
UNITS: tuple[Unit, ...] = get_args(Unit)

ClockUnit = Literal["hours", "minutes", "seconds"]
CLOCK_UNITS: tuple[ClockUnit, ...] = get_args(ClockUnit)
"""Units that are counted between instants, not between dates."""
UNIT_SECONDS: Mapping[str, int] = MappingProxyType(
    {"weeks": 604_800, "days": 86_400, "hours": 3600, "minutes": 60, "seconds": 1}
)
"""Units of a fixed length; a day between two instants is 24 hours."""

MAX_AMOUNT = 4_000_000
"""More days than there are between the first and the last date."""

_DAYS = {"days": 1, "weeks": 7}
_MONTHS = {"months": 1, "years": 12}
_WORKING_DAYS = 5


def shifted(day: date, amount: int, unit: Unit) -> date:
    """Return the date ``amount`` units after ``day`` (before it, if negative).

    A month that is too short ends the count on its last day: January 31 and one month is the end
    of February. Business days are Monday to Friday; holidays are not considered.

    Raises:
        DateRefusedError: the result is before year 1 or after year 9999.
    """
    try:
        if unit == "business_days":
            return _business_days_after(day, amount)
        if unit in _DAYS:
            return day + timedelta(days=amount * _DAYS[unit])
        return _months_after(day, amount * _MONTHS[unit])
    except (OverflowError, ValueError):
        raise outside_years() from None


def _months_after(day: date, months: int) -> date:
    year, month = divmod(day.year * 12 + day.month - 1 + months, 12)
    last = days_in_month(year, month + 1)
    return day.replace(year=year, month=month + 1, day=min(day.day, last))


def _business_days_after(day: date, amount: int) -> date:
    """Count whole weeks at once, then the rest day by day."""
    if amount == 0:
        return day
    step = timedelta(days=1 if amount > 0 else -1)
    weeks, rest = divmod(abs(amount), _WORKING_DAYS)
    while day.weekday() >= _WORKING_DAYS:  # a count from a weekend starts at its near edge
        day -= step
    day += step * 7 * weeks
    while rest:
        day += step
        rest -= day.weekday() < _WORKING_DAYS
    return day


def days_in_month(year: int, month: int) -> int:
    """Return 28 to 31."""
    return calendar.monthrange(year, month)[1]


def end_of_month(year: int, month: int) -> date:
    """Return the last date of a month."""
    return date(year, month, days_in_month(year, month))


def nth_weekday(year: int, month: int, weekday: int, nth: int) -> date:
    """Return the nth Monday (``weekday`` 0) to Sunday of a month; ``nth`` -1 is the last.

    Raises:
        DateRefusedError: the month has no such day.
    """
    if nth < 0:
        last = end_of_month(year, month)
        return last - timedelta(days=(last.weekday() - weekday) % 7)
    first = date(year, month, 1)
    day = 1 + (weekday - first.weekday()) % 7 + 7 * (nth - 1)
    if day > days_in_month(year, month):
        raise DateRefusedError(f"the month has only {nth - 1} of these days", code="invalid_date")
    return first.replace(day=day)


def next_weekday(day: date, weekday: int, *, forward: bool) -> date:
    """Return the nearest such weekday strictly after ``day``, or strictly before it.

    Raises:
        DateRefusedError: the result is before year 1 or after year 9999.
    """
    distance = (weekday - day.weekday()) % 7 if forward else (day.weekday() - weekday) % 7
    return shifted(day, (distance or 7) * (1 if forward else -1), "days")


def whole_months_between(start: date, end: date) -> tuple[int, int]:
    """Return the full months from ``start`` to a later ``end``, and the days that remain."""
    months = (end.year - start.year) * 12 + end.month - start.month
    if _months_after(start, months) > end:
        months -= 1
    return months, (end - _months_after(start, months)).days


def instant_after(moment: datetime, amount: int, unit: ClockUnit) -> datetime:
    """Return the instant ``amount`` units after an aware one, in its zone, whatever clocks do.

    Raises:
        DateRefusedError: the result is before year 1 or after year 9999.
    """
    try:
        later = moment.astimezone(UTC) + timedelta(seconds=amount * UNIT_SECONDS[unit])
        return later.astimezone(moment.tzinfo)
    except (OverflowError, ValueError):
        raise outside_years() from None


def count_of_weekday(start: date, end: date, weekday: int) -> int:
    """Return how many such weekdays lie from ``start`` to a later ``end``, both included.

    Ordinals count days from a Monday, so weekday 0 has the ordinals 1, 8, 15 and so on.
    """
    return (end.toordinal() - weekday + 6) // 7 - (start.toordinal() - weekday + 5) // 7


def count_of_business_days(start: date, end: date) -> int:
    """Return how many Mondays to Fridays lie from ``start`` to a later ``end``, both included."""
    return sum(count_of_weekday(start, end, weekday) for weekday in range(_WORKING_DAYS))
