"""Dates, worked out with nothing but ``datetime`` and ``calendar``."""

import calendar
from datetime import date, timedelta


def later(day: date, days: int) -> date:
    """Return the date so many days later; earlier if ``days`` is negative."""
    return day + timedelta(days=days)


def months_later(day: date, months: int) -> date:
    """Return the same day of a later month, or that month's last day if it is shorter."""
    index = day.year * 12 + day.month - 1 + months
    year, month = divmod(index, 12)
    return date(year, month + 1, min(day.day, calendar.monthrange(year, month + 1)[1]))


def working_days_later(day: date, days: int) -> date:
    """Return the date so many days from Monday to Friday later, or earlier if negative."""
    step = 1 if days > 0 else -1
    while days:
        day += timedelta(days=step)
        if day.weekday() < calendar.SATURDAY:
            days -= step
    return day


def nth(year: int, month: int, weekday: int, number: int) -> date:
    """Return the ``number``-th such weekday of a month; -1 is the last."""
    found = [
        date(year, month, day)
        for day in range(1, days_in(year, month) + 1)
        if date(year, month, day).weekday() == weekday
    ]
    return found[number - 1 if number > 0 else number]


def days_in(year: int, month: int) -> int:
    """Return how many days a month has."""
    return calendar.monthrange(year, month)[1]


def days_of(year: int) -> int:
    """Return how many days a year has."""
    return (date(year + 1, 1, 1) - date(year, 1, 1)).days


def leap(year: int) -> str:
    """Return ``yes`` for a leap year and ``no`` for another."""
    return "yes" if calendar.isleap(year) else "no"


def whole_years(start: date, end: date) -> int:
    """Return how many birthdays lie between two dates."""
    return end.year - start.year - ((end.month, end.day) < (start.month, start.day))


def whole_months(start: date, end: date) -> int:
    """Return how many whole months lie between two dates."""
    return (end.year - start.year) * 12 + end.month - start.month - (end.day < start.day)


def next_weekday(day: date, weekday: int, step: int = 1) -> date:
    """Return the nearest such weekday after ``day``, or before it with ``step`` -1."""
    day += timedelta(days=step)
    while day.weekday() != weekday:
        day += timedelta(days=step)
    return day
