"""Questions that ask for a length of time in another unit: ``how many hours are in 3 weeks``.

Only units of a fixed length are converted; a month or a year is a number of days only where the
question says which one.
"""

from collections.abc import Mapping

from app.adapters.providers.offline.reading.dates.date_terms import DateTerms
from app.adapters.providers.offline.reading.dates.distance_questions import (
    read_days_between,
    read_whole,
)
from app.adapters.providers.offline.reading.dates.moments import is_timed
from app.adapters.providers.offline.reading.sums.expressions import Expressions
from app.adapters.providers.offline.reading.words import formula
from app.adapters.providers.offline.reading.words.action import Action, Reading
from app.adapters.providers.offline.reading.words.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.words.formula import Formula
from app.adapters.providers.offline.reading.words.frames import read_closing, read_courtesies
from app.adapters.providers.offline.reading.words.numerals import read_number
from app.adapters.providers.offline.reading.words.rounding import read_presentation

_SECONDS: Mapping[str, int] = {
    "(second|seconds|sec|secs)": 1,
    "(minute|minutes|min|mins)": 60,
    "(hour|hours|hrs|hr)": 3600,
    "(day|days)": 86400,
    "(week|weeks)": 604800,
    "(fortnight|fortnights)": 2 * 604800,
}
TIME_UNITS: Phrases[int] = Phrases(_SECONDS)
"""Units of time, in seconds."""
DAY_SECONDS = 86400
_ASKED: Phrases[bool] = Phrases(
    {"how many": True, "(what is|what's|) (the|) number of": True, "(count|calculate) the": True}
)
_ARE: Phrases[bool] = Phrases(
    {
        "(are|is|were|will be|does|do) (there|it|) (in|)": True,
        "(make|make up|equal|in|equals)": True,
        "(are|is) (contained|) in": True,
    }
)
_CONVERTED: Phrases[bool] = Phrases({"(convert|change|turn|express|write)": True})
_WHAT_IS: Phrases[bool] = Phrases({"(what is|what's|what are|how much is|how long is)": True})
_INTO: Phrases[bool] = Phrases({"(to|into|in|as)": True})


def read_time_units(dates: DateTerms) -> Reading:
    """Read ``how many hours are in 3 weeks``, ``convert 90 minutes to hours``."""
    cursor, expressions = dates.cursor, Expressions(dates)
    read_courtesies(cursor)
    if _ASKED.read(cursor):
        unit = TIME_UNITS.expect(cursor)
        found = cursor.first_of(
            lambda at: _converted(_after_are(at), unit),
            lambda _: _of_days(dates, expressions, unit),
        )
    else:
        if not _CONVERTED.read(cursor):
            _WHAT_IS.read(cursor)
        seconds = read_time(cursor)
        _INTO.expect(cursor)
        found = _converted(seconds, TIME_UNITS.expect(cursor))
    while (present := cursor.attempt(read_presentation)) is not None:
        found = present(found)
    read_closing(cursor)
    return expressions.measures.actions(found.text)


def _after_are(cursor: Cursor) -> list[tuple[Formula, int]]:
    _ARE.expect(cursor)
    found = read_time(cursor)
    cursor.accept("have", "make", "last", "contain", "take")
    return found


def _of_days(dates: DateTerms, expressions: Expressions, unit: int) -> Formula:
    """Read ``are in February 2024`` or ``between March 1 and May 2, 2024``: days, in the unit."""
    if unit >= DAY_SECONDS:
        raise dates.cursor.misread()  # the calendar counts them itself
    between = dates.cursor.attempt(lambda _: read_days_between(dates))
    if between is not None and any(is_timed(str(day)) for day in between.values()):
        raise dates.cursor.misread()  # whole days would leave the times of day out
    if between is None:
        _ARE.expect(dates.cursor)
        between = read_whole(dates)
        dates.cursor.accept("have")
    days = expressions.measures.place(Action("calendar", between))
    return formula.times(days, Formula(str(DAY_SECONDS // unit)))


def read_time(cursor: Cursor) -> list[tuple[Formula, int]]:
    """Read ``2 hours and 15 minutes`` as numbers, each with the seconds of its unit."""
    found = [_one_time(cursor)]
    while (more := cursor.attempt(_and_more)) is not None:
        found.append(more)
    return found


def _and_more(cursor: Cursor) -> tuple[Formula, int]:
    cursor.accept(",")
    cursor.accept("and")
    return _one_time(cursor)


def _one_time(cursor: Cursor) -> tuple[Formula, int]:
    single = cursor.attempt(_single)
    if single is not None:
        return single
    count = read_number(cursor)
    cursor.accept("-")
    return count, TIME_UNITS.expect(cursor)


def _single(cursor: Cursor) -> tuple[Formula, int]:
    cursor.expect("a", "an", "one")
    return Formula("1"), TIME_UNITS.expect(cursor)


def _converted(parts: list[tuple[Formula, int]], unit: int) -> Formula:
    total = in_unit(*parts[0], unit)
    for count, seconds in parts[1:]:
        total = formula.plus(total, in_unit(count, seconds, unit))
    return total


def in_unit(count: Formula, seconds: int, unit: int) -> Formula:
    """Return ``count`` units of ``seconds`` seconds in a unit of ``unit`` seconds."""
    if seconds == unit:
        return count
    if seconds % unit == 0:
        return formula.times(count, Formula(str(seconds // unit)))
    if unit % seconds == 0:
        return formula.divided(count, Formula(str(unit // seconds)))
    return formula.divided(formula.times(count, Formula(str(seconds))), Formula(str(unit)))
