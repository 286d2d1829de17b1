"""Questions about the time between two times of a day: ``How many minutes from 9:20 to 11:05``."""

from app.adapters.providers.offline.reading.dates.clocks import read_clock
from app.adapters.providers.offline.reading.dates.date_terms import DateTerms
from app.adapters.providers.offline.reading.sums.expressions import Expressions
from app.adapters.providers.offline.reading.sums.problems import read_end, solved
from app.adapters.providers.offline.reading.words import formula
from app.adapters.providers.offline.reading.words.action import Reading
from app.adapters.providers.offline.reading.words.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.words.formula import Binding, Formula
from app.adapters.providers.offline.reading.words.frames import read_courtesies
from app.adapters.providers.offline.reading.words.holders import read_holder

_HOUR = 60
_UNIT: Phrases[int] = Phrases({"(minutes|mins)": 1, "(hours|hrs)": _HOUR})
_HOW_MANY: Phrases[bool] = Phrases({"how many": True, "(what is|what's) the number of": True})
_THERE: Phrases[bool] = Phrases(
    {
        "(are|is) (there|it|) (in|)": True,
        "(does|do|did) (it|that|this|he|she|i|we|they) (last|take|work|sleep|run)": True,
        "(lie|pass|passed|is that|are that|is this)": True,
    }
)
_STARTS: Phrases[bool] = Phrases(
    {
        "(starts|start|begins|begin|started|began|leaves|left|departs|departed|opens|opened) (at|)"
        "": True,
        "(runs|lasts|ran|works|worked|is open|sleeps|slept|lasted|goes) from": True,
    }
)
_ENDS: Phrases[bool] = Phrases(
    {
        "(and|,) (it|he|she|) (ends|end|ended|finishes|finished|arrives|arrived|closes|closed|"
        "stops|stopped) (at|)": True,
        "(to|until|till)": True,
    }
)


def read_clock_times(dates: DateTerms) -> Reading:
    """Read ``how many hours are there between 8:30 and 17:00`` or a story with both times."""
    cursor, expressions = dates.cursor, Expressions(dates)
    read_courtesies(cursor)
    found = cursor.first_of(_asked_first, _told_first)
    return solved(expressions, found)


def _asked_first(cursor: Cursor) -> Formula:
    _HOW_MANY.expect(cursor)
    unit = _UNIT.expect(cursor)
    while _THERE.read(cursor):
        pass
    opening = cursor.expect("from", "between")
    start = read_clock(cursor)
    cursor.expect(*(("and",) if opening == "between" else ("to", "until", "till")))
    return _between(cursor, start, read_clock(cursor), unit)


def _told_first(cursor: Cursor) -> Formula:
    """``A meeting starts at 9:40 and ends at 11:10. How many minutes does it last``."""
    read_holder(cursor, _STARTS.beginnings)
    _STARTS.expect(cursor)
    start = read_clock(cursor)
    _ENDS.expect(cursor)
    end = read_clock(cursor)
    read_end(cursor)
    _HOW_MANY.expect(cursor)
    unit = _UNIT.expect(cursor)
    _THERE.expect(cursor)
    return _between(cursor, start, end, unit)


def _between(cursor: Cursor, start: tuple[int, int], end: tuple[int, int], unit: int) -> Formula:
    """Return the time from one to a later one of the same day."""
    if end <= start:
        raise cursor.ambiguous("the second time is not later on the same day; give both dates")
    gap = formula.minus(_in_minutes(end), _in_minutes(start))
    return gap if unit == 1 else formula.divided(gap, Formula(str(unit)))


def _in_minutes(time: tuple[int, int]) -> Formula:
    hour, minute = time
    if minute == 0:
        return Formula(f"{hour} * 60", Binding.PRODUCT)
    return Formula(f"{hour} * 60 + {minute}", Binding.SUM)
