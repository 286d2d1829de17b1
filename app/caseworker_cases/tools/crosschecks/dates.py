"""Recalculates dates by counting days, with its own date parser.

A day number is a proleptic Gregorian ordinal minus one. Modulo seven it is 0 on a Monday.
"""

import re
from collections.abc import Callable, Mapping
from datetime import date, datetime
from typing import Any
from zoneinfo import ZoneInfo

from caseworker.tools.ports import ToolContext, ToolResult

_MOST_STEPS = 20_000
"""Maximum number of days to count one by one."""
_MONTHS = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_SMALL = frozenset({"st", "nd", "rd", "th", "of", "the"})
_TOKEN = re.compile(r"[A-Za-z]+|\d+", re.ASCII)
_RELATIVE = {"yesterday": -1, "today": 0, "tomorrow": 1}
_STEPS = {"days": 1, "weeks": 7}


class _UndecidedDateError(Exception):
    """The recalculation cannot decide."""


def agrees(args: Mapping[str, Any], result: ToolResult, context: ToolContext) -> bool | None:
    """Return whether a calendar operation's value is correct; None if that is undecidable."""
    try:
        if args["operation"] == "now":
            said = datetime.fromisoformat(result["iso"])
            return int(said.timestamp()) == int(context.now.timestamp())
        work_out = _OPERATIONS.get(args["operation"])
        return None if work_out is None else work_out(_Asked(args, context)) == result["value"]
    except (_UndecidedDateError, KeyError, ValueError, OverflowError):
        return None


def _number(day: date) -> int:
    return day.toordinal() - 1


def _date_of(number: int) -> date:
    return date.fromordinal(number + 1)


class _Asked:
    """The arguments of one operation, with dates converted to day numbers."""

    def __init__(self, args: Mapping[str, Any], context: ToolContext) -> None:
        self.args = args
        zone = ZoneInfo(args.get("timezone") or context.timezone)
        self.today = _number(context.now.astimezone(zone).date())

    def whole(self, name: str) -> int:
        return int(self.args[name])

    def day(self, name: str = "date") -> int:
        """Return the day number of a date argument."""
        text = self.args[name]
        if (distance := _RELATIVE.get(text.strip().lower())) is not None:
            return self.today + distance
        return _number(_read(text))


def _read(text: str) -> date:
    """Parse 2024-03-15, March 15, 2024, 15 March 2024 or 24.12.2025; other forms are undecided."""
    words = _TOKEN.findall(text)
    numbers = [int(word) for word in words if word.isdigit()]
    months = [word[:3].lower() for word in words if word[:3].lower() in _MONTHS]
    years = [word for word in words if word.isdigit() and len(word) == 4]
    known = {*_MONTHS, *_SMALL, *(name[:3].lower() for name in _WEEKDAYS)}
    foreign = any(word[:3].lower() not in known for word in words if word.isalpha())
    if len(years) != 1 or len(numbers) + len(months) != 3 or ":" in text or foreign:
        raise _UndecidedDateError
    year = int(years[0])
    numbers.remove(year)
    if months:
        return date(year, _MONTHS.index(months[0]) + 1, numbers[0])
    first, second = numbers
    if words[0] == years[0] or second > 12:
        return date(year, first, second)
    if first > 12 or first == second:
        return date(year, second, first)
    raise _UndecidedDateError


def _iso(number: int) -> str:
    return _date_of(number).isoformat()


def _length(year: int, month: int) -> int:
    return 31 if month == 12 else (date(year, month + 1, 1) - date(year, month, 1)).days


def _shifted(asked: _Asked, sign: int) -> int:
    number, amount, unit = asked.day(), sign * asked.whole("amount"), asked.args["unit"]
    if unit in _STEPS:
        return number + amount * _STEPS[unit]
    if unit in {"months", "years"}:
        day = _date_of(number)
        months = 12 * day.year + day.month - 1 + amount * (12 if unit == "years" else 1)
        year, month = months // 12, months % 12 + 1
        return _number(date(year, month, min(day.day, _length(year, month))))
    if unit != "business_days" or abs(amount) > _MOST_STEPS:
        raise _UndecidedDateError
    left, step = abs(amount), 1 if amount > 0 else -1
    while left:
        number += step
        left -= number % 7 < 5
    return number


def _weekday(asked: _Asked) -> str:
    return _WEEKDAYS[(_shifted(asked, 1) if "amount" in asked.args else asked.day()) % 7]


def _ends(asked: _Asked) -> tuple[int, int]:
    start, end = (
        asked.day(name) if name in asked.args else asked.today for name in ("date", "end_date")
    )
    return start, end


def _distance(asked: _Asked) -> str:
    """Return the number of whole units from the earlier day to the later one."""
    start, end = sorted(_ends(asked))
    unit = asked.args.get("unit", "days")
    if unit in _STEPS:
        return str((end - start) // _STEPS[unit])
    first, last = _date_of(start), _date_of(end)
    months = 12 * (last.year - first.year) + last.month - first.month
    months -= min(first.day, _length(last.year, last.month)) > last.day
    return str(months // 12 if unit == "years" else months)


def _until(asked: _Asked) -> str:
    start, end = _ends(asked)
    distance = _distance(asked)
    return f"-{distance}" if end < start and distance != "0" else distance


def _business_days(asked: _Asked) -> str:
    start, end = sorted(_ends(asked))
    if end - start > _MOST_STEPS:
        raise _UndecidedDateError
    return str(sum(number % 7 < 5 for number in range(start, end + 1)))


def _days_in_year(asked: _Asked) -> str:
    return str(sum(_length(asked.whole("year"), month) for month in range(1, 13)))


def _end_of_month(asked: _Asked) -> str:
    if "date" in asked.args:
        day = _date_of(asked.day())
    else:
        day = date(asked.whole("year"), asked.whole("month"), 1)
    return day.replace(day=_length(day.year, day.month)).isoformat()


def _nth_weekday(asked: _Asked) -> str:
    year, month, nth = (asked.whole(name) for name in ("year", "month", "nth"))
    first = _number(date(year, month, 1))
    wanted = _WEEKDAYS.index(asked.args["weekday"])
    days = range(first, first + _length(year, month))
    fitting = [number for number in days if number % 7 == wanted]
    return _iso(fitting[nth - 1 if nth > 0 else nth])


def _nearest(asked: _Asked, step: int) -> str:
    wanted, number = _WEEKDAYS.index(asked.args["weekday"]), asked.day() + step
    while number % 7 != wanted:
        number += step
    return _iso(number)


_OPERATIONS: Mapping[str, Callable[[_Asked], str]] = {
    "add": lambda asked: _iso(_shifted(asked, 1)),
    "count_business_days": _business_days,
    "days_in_month": lambda asked: str(_length(asked.whole("year"), asked.whole("month"))),
    "days_in_year": _days_in_year,
    "difference": _distance,
    "end_of_month": _end_of_month,
    "leap_year": lambda asked: "yes" if _days_in_year(asked) == "366" else "no",
    "normalise": lambda asked: _iso(asked.day()),
    "nth_weekday": _nth_weekday,
    "subtract": lambda asked: _iso(_shifted(asked, -1)),
    "today": lambda asked: _iso(asked.today),
    "until": _until,
    "weekday": _weekday,
    "weekday_after": lambda asked: _nearest(asked, 1),
    "weekday_before": lambda asked: _nearest(asked, -1),
}
