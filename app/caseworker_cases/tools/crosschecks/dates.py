"""Recalculates dates by counting days, with its own date parser.

A day number is a proleptic Gregorian ordinal minus one. Modulo seven it is 0 on a Monday.
"""

import re
from collections.abc import Callable, Mapping
from datetime import date, datetime
from typing import Any
from zoneinfo import ZoneInfo

from caseworker.tools.ports import ToolContext, ToolResult

_MAX_STEPS = 20_000
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
            stated = datetime.fromisoformat(result["iso"])
            return int(stated.timestamp()) == int(context.now.timestamp())
        work_out = _OPERATIONS.get(args["operation"])
        return None if work_out is None else work_out(_DateQuery(args, context)) == result["value"]
    except (_UndecidedDateError, KeyError, ValueError, OverflowError):
        return None


def _number(day: date) -> int:
    return day.toordinal() - 1


def _date_of(number: int) -> date:
    return date.fromordinal(number + 1)


class _DateQuery:
    """The arguments of one operation, with dates converted to day numbers."""

    def __init__(self, args: Mapping[str, Any], context: ToolContext) -> None:
        self.args = args
        zone = ZoneInfo(args.get("timezone") or context.timezone)
        self.today = _number(context.now.astimezone(zone).date())

    def integer(self, name: str) -> int:
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
    date_words = {*_MONTHS, *_SMALL, *(name[:3].lower() for name in _WEEKDAYS)}
    foreign = any(word[:3].lower() not in date_words for word in words if word.isalpha())
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


def _shifted(query: _DateQuery, sign: int) -> int:
    number, amount, unit = query.day(), sign * query.integer("amount"), query.args["unit"]
    if unit in _STEPS:
        return number + amount * _STEPS[unit]
    if unit in {"months", "years"}:
        day = _date_of(number)
        months = 12 * day.year + day.month - 1 + amount * (12 if unit == "years" else 1)
        year, month = months // 12, months % 12 + 1
        return _number(date(year, month, min(day.day, _length(year, month))))
    if unit != "business_days" or abs(amount) > _MAX_STEPS:
        raise _UndecidedDateError
    remaining, step = abs(amount), 1 if amount > 0 else -1
    while remaining:
        number += step
        remaining -= number % 7 < 5
    return number


def _weekday(query: _DateQuery) -> str:
    return _WEEKDAYS[(_shifted(query, 1) if "amount" in query.args else query.day()) % 7]


def _ends(query: _DateQuery) -> tuple[int, int]:
    start, end = (
        query.day(name) if name in query.args else query.today for name in ("date", "end_date")
    )
    return start, end


def _distance(query: _DateQuery) -> str:
    """Return the number of whole units from the earlier day to the later one."""
    start, end = sorted(_ends(query))
    unit = query.args.get("unit", "days")
    if unit in _STEPS:
        return str((end - start) // _STEPS[unit])
    first, last = _date_of(start), _date_of(end)
    months = 12 * (last.year - first.year) + last.month - first.month
    months -= min(first.day, _length(last.year, last.month)) > last.day
    return str(months // 12 if unit == "years" else months)


def _until(query: _DateQuery) -> str:
    start, end = _ends(query)
    distance = _distance(query)
    return f"-{distance}" if end < start and distance != "0" else distance


def _business_days(query: _DateQuery) -> str:
    start, end = sorted(_ends(query))
    if end - start > _MAX_STEPS:
        raise _UndecidedDateError
    return str(sum(number % 7 < 5 for number in range(start, end + 1)))


def _days_in_year(query: _DateQuery) -> str:
    return str(sum(_length(query.integer("year"), month) for month in range(1, 13)))


def _end_of_month(query: _DateQuery) -> str:
    if "date" in query.args:
        day = _date_of(query.day())
    else:
        day = date(query.integer("year"), query.integer("month"), 1)
    return day.replace(day=_length(day.year, day.month)).isoformat()


def _nth_weekday(query: _DateQuery) -> str:
    year, month, nth = (query.integer(name) for name in ("year", "month", "nth"))
    first = _number(date(year, month, 1))
    weekday = _WEEKDAYS.index(query.args["weekday"])
    days = range(first, first + _length(year, month))
    fitting = [number for number in days if number % 7 == weekday]
    return _iso(fitting[nth - 1 if nth > 0 else nth])


def _nearest(query: _DateQuery, step: int) -> str:
    weekday, number = _WEEKDAYS.index(query.args["weekday"]), query.day() + step
    while number % 7 != weekday:
        number += step
    return _iso(number)


_OPERATIONS: Mapping[str, Callable[[_DateQuery], str]] = {
    "add": lambda query: _iso(_shifted(query, 1)),
    "count_business_days": _business_days,
    "days_in_month": lambda query: str(_length(query.integer("year"), query.integer("month"))),
    "days_in_year": _days_in_year,
    "difference": _distance,
    "end_of_month": _end_of_month,
    "leap_year": lambda query: "yes" if _days_in_year(query) == "366" else "no",
    "normalise": lambda query: _iso(query.day()),
    "nth_weekday": _nth_weekday,
    "subtract": lambda query: _iso(_shifted(query, -1)),
    "today": lambda query: _iso(query.today),
    "until": _until,
    "weekday": _weekday,
    "weekday_after": lambda query: _nearest(query, 1),
    "weekday_before": lambda query: _nearest(query, -1),
}
