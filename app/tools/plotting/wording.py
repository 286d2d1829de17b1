"""Numbers and days as pictures show them; no language of the system plays a part."""

from datetime import date

MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


def plain(number: float, decimals: int) -> str:
    """Return a number with separators and a real minus sign."""
    text = f"{number + 0.0:,.{decimals}f}"
    if not text.strip("-0.,"):
        text = text.removeprefix("-")
    return text.replace("-", "\N{MINUS SIGN}")


def in_words(ordinal: int) -> str:
    """Return a day as a caption names it, such as 3 Jan 2012."""
    day = date.fromordinal(ordinal)
    return f"{day.day} {MONTHS[day.month - 1]} {day.year}"
