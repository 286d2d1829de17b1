"""How dates are said in English, whatever the locale of the process (seed 002, 25.2 and 25.3)."""

from datetime import date

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
