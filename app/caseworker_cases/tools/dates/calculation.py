"""Date arithmetic, and English date names that do not depend on the locale.

Results before year 1 or after year 9999 raise ``ToolRefusedError``.
"""

import calendar
from collections.abc import Sequence
from datetime import MAXYEAR, MINYEAR, date, timedelta
from typing import Literal, get_args

from caseworker.tools.ports import ToolRefusedError

Unit = Literal["days", "weeks", "months", "years", "business_days"]
UNITS: tuple[Unit, ...] = get_args(Unit)

MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

_MONTHS_PER_UNIT = {"months": 1, "years": 12}
_WORKING_DAYS = 5


def month_and_day(day: date) -> str:
    """Return a date such as ``September 8, 2025``."""
    return f"{MONTHS[day.month - 1]} {day.day}, {day.year}"


def weekday_name(day: date) -> str:
    """Return the English name of a date's weekday."""
    return WEEKDAYS[day.weekday()]


def in_words(day: date) -> str:
    """Return a date in the format that results use: ``Monday, September 8, 2025``."""
    return f"{weekday_name(day)}, {month_and_day(day)}"


def with_unit(number: int | str, unit: str) -> str:
    """Return a number with its unit, such as ``1 day`` or ``2 days``."""
    return f"{number} {unit}" if str(number) == "1" else f"{number} {unit}s"


def joined(parts: Sequence[str]) -> str:
    """Join parts in English: ``1 day``, ``1 day and 2 hours``, or three with commas."""
    return " and ".join(part for part in (", ".join(parts[:-1]), parts[-1]) if part)


def invalid_date(message: str) -> ToolRefusedError:
    """Return the error for a text that is not a date."""
    return ToolRefusedError(message, code="invalid_date")


def outside_years() -> ToolRefusedError:
    """Return the error for a result outside the supported years."""
    return ToolRefusedError(
        f"the result lies outside the years {MINYEAR} to {MAXYEAR}", code="out_of_range"
    )


def shifted(day: date, amount: int, unit: Unit) -> date:
    """Return the date ``amount`` units after ``day`` (before it, if negative).

    If the target month is too short, the result is its last day: January 31 plus one month is the
    end of February. Business days are Monday to Friday; holidays are not considered.
    """
    try:
        if unit == "business_days":
            return _business_days_after(day, amount)
        if unit in _MONTHS_PER_UNIT:
            return _months_after(day, amount * _MONTHS_PER_UNIT[unit])
        return day + timedelta(**{unit: amount})
    except (OverflowError, ValueError):
        raise outside_years() from None


def _months_after(day: date, months: int) -> date:
    year, month = divmod(day.year * 12 + day.month - 1 + months, 12)
    last = days_in_month(year, month + 1)
    return day.replace(year=year, month=month + 1, day=min(day.day, last))


def _business_days_after(day: date, amount: int) -> date:
    """Advance by whole weeks at once, then day by day."""
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
    """Return the number of days in a month, 28 to 31."""
    return calendar.monthrange(year, month)[1]


def end_of_month(year: int, month: int) -> date:
    """Return the last day of a month."""
    return date(year, month, days_in_month(year, month))


def nth_weekday(year: int, month: int, weekday: int, nth: int) -> date:
    """Return the date of a month's nth ``weekday`` (0 is Monday); ``nth`` -1 is the last one."""
    weeks = calendar.monthcalendar(year, month)
    days = [week[weekday] for week in weeks if week[weekday]]
    if nth > len(days):
        of_them = f"the month has {len(days)} of these days"
        raise invalid_date(f"{of_them}: give 1 to {len(days)}, or -1 for the last")
    return date(year, month, days[nth - 1 if nth > 0 else nth])


def next_weekday(day: date, weekday: int, *, forward: bool) -> date:
    """Return the nearest date with this weekday after ``day``, or before it if not ``forward``.

    ``day`` itself is never returned.
    """
    distance = (weekday - day.weekday()) % 7 if forward else (day.weekday() - weekday) % 7
    return shifted(day, (distance or 7) * (1 if forward else -1), "days")


def whole_months_between(start: date, end: date) -> tuple[int, int]:
    """Return the number of full months from ``start`` to a later ``end``, and of days left over."""
    months = (end.year - start.year) * 12 + end.month - start.month
    if _months_after(start, months) > end:
        months -= 1
    return months, (end - _months_after(start, months)).days


def count_of_business_days(start: date, end: date) -> int:
    """Count the weekdays (Monday to Friday) from ``start`` to a later ``end``, inclusive."""
    weeks, rest = divmod((end - start).days + 1, 7)
    beginning = start.weekday()
    days_of_rest = sum((beginning + number) % 7 < _WORKING_DAYS for number in range(rest))
    return weeks * _WORKING_DAYS + days_of_rest
