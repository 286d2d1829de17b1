"""Reads the days that a question about prices is about, as a first and a last one.

A year, a quarter or a month stands for all of its days; ``since`` and ``until`` leave one end open.
"""

from dataclasses import dataclass, replace
from datetime import date

from app.adapters.providers.offline.reading.dates import date_words
from app.adapters.providers.offline.reading.dates.date_terms import DAY_BEGINNINGS, DateTerms
from app.adapters.providers.offline.reading.dates.periods import read_month, read_year
from app.adapters.providers.offline.reading.words.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.words.numerals import ordinal, read_number
from app.adapters.providers.offline.reading.words.tokens import Kind
from app.tools.dates.calculation import days_in_month


@dataclass(frozen=True, slots=True)
class Period:
    """The first and the last day, both included; None is an end that is left open."""

    start: date | None
    end: date | None
    named: bool = False
    """True if the first day comes from the name of a year, a quarter or a month."""

    @property
    def is_day(self) -> bool:
        """True for a single day that was given as one."""
        return self.start is not None and self.start == self.end and not self.named


_WHOLE: Phrases[bool] = Phrases(
    {
        "(in|over|for|across|during|) (the|) (whole|entire|full|complete) "
        "(period|time|history|data|data set|dataset|price history)": True,
        "(in|over|for|across|) all (the|) (available|) (data|prices|years|days)": True,
        "ever": True,
    }
)
_SINCE: Phrases[bool] = Phrases({"(ever|) since": True})
_UNTIL: Phrases[bool] = Phrases({"(until|till|up to|through|as of|ending|ending on)": True})
_UP_TO: Phrases[bool] = Phrases({"(to|until|till|through|up to|and until|-)": True})
_IN: Phrases[bool] = Phrases(
    {
        "(in|during|over|for|within|throughout|across|on|of) (all of|the whole of|)": True,
        "(during|over|for|in|throughout) (the course of|)": True,
        "(all of|the whole of)": True,
    }
)
_YEAR_OF: Phrases[bool] = Phrases(
    {"(the|) (whole|full|entire|calendar) (calendar|) (year|) (of|)": True}
)
PERIOD_BEGINNINGS = DAY_BEGINNINGS.union(
    {"period", "time", "years", "between", "from", "q", "h", "month"},
    _WHOLE.beginnings,
    _SINCE.beginnings,
    _UNTIL.beginnings,
    _IN.beginnings,
    _YEAR_OF.beginnings,
    date_words.THIS_NEXT_LAST.beginnings,
    {"year"},
)
"""The words with which a period can begin that does not begin with a digit."""


def read_period(dates: DateTerms) -> Period:
    """Read ``in 2012``, ``from March 2011 to 2012-01-31``, ``since 2011``, ``on May 18, 2012``."""
    cursor = dates.cursor
    if _WHOLE.read(cursor):
        return Period(None, None)
    if _SINCE.read(cursor):
        return replace(_span(dates), end=None)
    if _UNTIL.read(cursor):
        return Period(None, _span(dates).end)
    return cursor.first_of(lambda _: _range(dates), lambda _: _inside(dates))


def _inside(dates: DateTerms) -> Period:
    _IN.read(dates.cursor)
    return _span(dates)


def _range(dates: DateTerms) -> Period:
    """Read ``between A and B``, ``from A to B`` or ``2008-2010``."""
    cursor = dates.cursor
    _IN.read(cursor)
    cursor.accept("the")
    cursor.accept("period", "time", "years")
    opening = cursor.accept("between", "from")
    if opening is None and not _is_year(cursor):
        raise cursor.misread()
    start = cursor.attempt(_without_year)
    first = None if start else _span(dates)
    if opening == "between":
        cursor.expect("and")
    else:
        _UP_TO.expect(cursor)
    last = _span(dates)
    if start is not None:
        first = _in_year(cursor, start, last)
    if first is None or first.start is None or last.end is None or first.start > last.end:
        raise cursor.ambiguous("the period in it ends before it begins")
    return Period(first.start, last.end, first.named)


def _without_year(cursor: Cursor) -> tuple[int, int | None]:
    """Read the ``March`` of ``March to June 2011``, or ``March 15``: month, and perhaps day."""
    found = cursor.first_of(_month_and_day, lambda at: (date_words.month(at), None))
    if not cursor.at("and", "to", "until", "till", "through", "-"):
        raise cursor.misread()
    return found


def _month_and_day(cursor: Cursor) -> tuple[int, int | None]:
    if (month := cursor.attempt(date_words.month)) is not None:
        return month, date_words.day_of_month(cursor)
    number = date_words.day_of_month(cursor)
    cursor.accept("of")
    return date_words.month(cursor), number


def _in_year(cursor: Cursor, start: tuple[int, int | None], last: Period) -> Period:
    """Put a day or month without a year into the year of the last day."""
    month, number = start
    if last.end is None:
        raise cursor.misread()
    try:
        first = date(last.end.year, month, number or 1)
    except ValueError:
        raise cursor.ambiguous("there is no such day as the first one") from None
    return Period(first, None, named=number is None)


def _span(dates: DateTerms) -> Period:
    """Read a year, a half, a quarter, some months of a year, a month, or a day."""
    return dates.cursor.first_of(
        lambda at: part_of_year(at, dates.today),
        lambda at: short_part(at, dates.today),
        lambda at: _whole_month(at, dates.today),
        lambda _: _day(dates),
        lambda at: _whole_year(at, dates.today),
    )


def named_period(dates: DateTerms) -> Period:
    """Read a year, a half, a quarter, some months of a year, or a month."""
    return dates.cursor.first_of(
        lambda at: part_of_year(at, dates.today),
        lambda at: short_part(at, dates.today),
        lambda at: _whole_month(at, dates.today),
        lambda at: _whole_year(at, dates.today),
    )


def _day(dates: DateTerms) -> Period:
    day = dates.term().known
    if day is None:
        raise dates.cursor.ambiguous("a day of prices has to be written out, like 2012-05-18")
    return Period(day, day)


def _whole_month(cursor: Cursor, today: date) -> Period:
    cursor.accept("the")
    cursor.accept("month")
    cursor.accept("of")
    year, month = read_month(cursor, today)
    return _months(cursor, year, month, month)


def _whole_year(cursor: Cursor, today: date) -> Period:
    _YEAR_OF.read(cursor)
    return _months(cursor, read_year(cursor, today), 1, 12)


def part_of_year(cursor: Cursor, today: date) -> Period:
    """Read ``the first quarter of 2012``, ``the second half of 2009``, ``the last 3 months of``."""
    cursor.accept("the")
    nth = None if cursor.accept("last", "final") else ordinal(cursor)
    months, parts = _length(cursor, nth)
    cursor.accept("of", "in")
    year = _whole_year(cursor, today).start
    if year is None or (nth is not None and not 1 <= nth <= parts):
        raise cursor.misread()
    begin = 13 - months if nth is None else (nth - 1) * months + 1
    return _months(cursor, year.year, begin, begin + months - 1)


def _length(cursor: Cursor, nth: int | None) -> tuple[int, int]:
    """Return how many months a part has, and how many such parts can be counted."""
    if cursor.accept("quarter"):
        return 3, 4
    if cursor.accept("half"):
        return 6, 2
    count = read_number(cursor).text
    cursor.expect("months")
    if nth not in {None, 1} or not count.isdigit() or not 1 <= int(count) <= 12:
        raise cursor.misread()
    return int(count), 1


def short_part(cursor: Cursor, today: date) -> Period:
    """Read ``Q1 2012``, ``H2 of 2009`` or ``2012 Q1``."""
    year = _year_number(cursor) if _is_year(cursor) else None
    months, parts = (3, 4) if cursor.expect("q", "h") == "q" else (6, 2)
    if not cursor.here.glued or not cursor.here.text.isdigit():
        raise cursor.misread()
    nth = int(cursor.number())
    if year is None:
        cursor.accept("of", "in", "/")
        year = read_year(cursor, today)
    if not 1 <= nth <= parts:
        raise cursor.misread()
    return _months(cursor, year, (nth - 1) * months + 1, nth * months)


def _is_year(cursor: Cursor) -> bool:
    token = cursor.here
    return token.kind is Kind.NUMBER and token.text.isdigit() and len(token.text) == 4


def _year_number(cursor: Cursor) -> int:
    return int(cursor.take().text)


def _months(cursor: Cursor, year: int, first: int, last: int) -> Period:
    if not date.min.year <= year <= date.max.year:
        raise cursor.misread()
    end = date(year, last, days_in_month(year, last))
    return Period(date(year, first, 1), end, named=True)
