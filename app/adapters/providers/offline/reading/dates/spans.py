"""Lengths of time in word problems, in units that hold a whole number of one another."""

from typing import Final

from app.adapters.providers.offline.reading.words import formula
from app.adapters.providers.offline.reading.words.cursor import Cursor, MisreadError, Phrases
from app.adapters.providers.offline.reading.words.formula import PLAIN, Formula
from app.adapters.providers.offline.reading.words.numerals import read_number

Span = tuple[str, int]
"""A scale, and how many of its smallest unit a unit has; units of two scales do not convert."""

_CLOCK, _YEAR = "clock", "year"
UNITS: Final[Phrases[Span]] = Phrases(
    {
        "(second|seconds|sec|secs)": (_CLOCK, 1),
        "(minute|minutes|min|mins)": (_CLOCK, 60),
        "(hour|hours|hr|hrs|h)": (_CLOCK, 3600),
        "(day|days)": ("day", 1),
        "(week|weeks)": ("day", 7),
        "(fortnight|fortnights)": ("day", 14),
        "(month|months)": (_YEAR, 1),
        "(quarter|quarters)": (_YEAR, 3),
        "(year|years)": (_YEAR, 12),
    }
)
"""A day is no number of hours here: who works 8 hours a day does not work all of it."""
_PER: Phrases[bool] = Phrases({"(a|an|per|each|every)": True})
_LY: Phrases[Span] = Phrases(
    {"(hourly)": (_CLOCK, 3600), "daily": ("day", 1), "weekly": ("day", 7), "monthly": (_YEAR, 1)}
)


def read_per(cursor: Cursor) -> Span:
    """Read ``an hour``, ``per day`` or ``every month``."""
    if (span := _LY.read(cursor)) is not None:
        return span
    _PER.expect(cursor)
    return UNITS.expect(cursor)


def read_span_of_time(cursor: Cursor) -> tuple[Formula, Span]:
    """Read ``12 hours``, ``two years``, ``a week``."""
    cursor.accept("the", "next", "first")
    count = cursor.attempt(read_number) or _one(cursor)
    if count.quantity != PLAIN:
        raise cursor.misread()
    cursor.accept("-")
    return count, UNITS.expect(cursor)


def _one(cursor: Cursor) -> Formula:
    cursor.expect("a", "an", "one")
    return Formula("1")


def in_span(count: Formula, told: Span, asked: Span) -> Formula:
    """Return a number of units of one kind in units of another.

    Raises:
        MisreadError: the one does not hold a certain number of the other.
    """
    if told[0] != asked[0]:
        raise MisreadError
    if told == asked:
        return count
    if told[1] % asked[1] == 0:
        return formula.times(count, Formula(str(told[1] // asked[1])))
    if asked[1] % told[1] == 0:
        return formula.divided(count, Formula(str(asked[1] // told[1])))
    ratio = formula.times(count, Formula(str(told[1])))
    return formula.divided(ratio, Formula(str(asked[1])))
