"""How right answers are written: plain digits, and dates in full."""

from datetime import date
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction

_MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July", "August"),
    *("September", "October", "November", "December"),
)
_WEEKDAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")

Number = int | str | Fraction
"""Exact: text such as ``19.99`` is read as the decimal it is."""


def exact(number: Number) -> Fraction:
    """Return a number as the fraction it is."""
    return Fraction(number)


def number(value: Number, places: int | None = None) -> str:
    """Return a number as decimal text, exactly, or rounded to ``places``, halves away from zero.

    Raises:
        ValueError: it has no end, and nothing was said about rounding.
    """
    fraction = Fraction(value)
    if places is None:
        return _terminating(fraction)
    scaled = abs(fraction) * 10**places
    digits = int(scaled + Fraction(1, 2))
    text = format(Decimal(digits).scaleb(-places), "f")
    return f"-{text}" if fraction < 0 and digits else text


def rounded_float(value: float, places: int) -> str:
    """Return a measured number rounded to ``places``, halves away from zero."""
    return format(Decimal(repr(value)).quantize(Decimal(1).scaleb(-places), ROUND_HALF_UP), "f")


def weekday(day: date) -> str:
    """Return the name of the day of the week."""
    return _WEEKDAYS[day.weekday()]


def in_full(day: date) -> str:
    """Return a date such as ``Monday, September 8, 2025``."""
    return f"{weekday(day)}, {_MONTHS[day.month - 1]} {day.day}, {day.year}"


def _terminating(fraction: Fraction) -> str:
    for places in range(60):
        scaled = fraction * 10**places
        if scaled.denominator == 1:
            return format(Decimal(scaled.numerator).scaleb(-places), "f")
    raise ValueError(f"{fraction} has no end: say how it is rounded")
