"""How dates are said in English, whatever the locale of the process (seed 002, 25.2 and 25.3)."""

from collections.abc import Sequence
from datetime import date

from app.tools.ports import ToolResult

MONTHS = (
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
)
WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")


def month_and_day(day: date) -> str:
    """Return a date such as ``September 8, 2025``."""
    return f"{MONTHS[day.month - 1]} {day.day}, {day.year}"


def weekday_name(day: date) -> str:
    """Return the name of the day of the week."""
    return WEEKDAYS[day.weekday()]


def in_words(day: date) -> str:
    """Return a date in the one form that all results use: ``Monday, September 8, 2025``."""
    return f"{weekday_name(day)}, {month_and_day(day)}"


def counted(number: int, unit: str) -> str:
    """Return ``1 day`` or ``2 days``."""
    return f"{number} {unit}" if abs(number) == 1 else f"{number} {unit}s"


def joined(parts: Sequence[str]) -> str:
    """Return ``1 day``, ``1 day and 2 hours`` or ``1 day, 2 hours and 5 minutes``."""
    return " and ".join(part for part in (", ".join(parts[:-1]), parts[-1]) if part)


def told_day(day: date) -> ToolResult:
    """Return a date as results tell it, as a value and in words."""
    iso = day.isoformat()
    return {"value": iso, "text": in_words(day), "iso": iso, "weekday": weekday_name(day)}
