"""Questions that place a day in its year: its week, its number, its quarter."""

from app.adapters.providers.offline.reading.dates.calendar_action import calendar_action
from app.adapters.providers.offline.reading.dates.date_terms import DateTerms
from app.adapters.providers.offline.reading.dates.days import Day, relative
from app.adapters.providers.offline.reading.words.action import Action
from app.adapters.providers.offline.reading.words.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.words.frames import read_courtesies

_WEEK, _ANY_WEEK = "week_number", "any week"
_DAY, _QUARTER = "day_of_year", "quarter"
_OF_YEAR = "(of the year|)"
_PLACE: Phrases[str] = Phrases(
    {
        f"(in|on|) (which|what) iso (8601|) (calendar|) week (number|) {_OF_YEAR}": _WEEK,
        f"(in|on|) (which|what) (calendar|) week (number|) {_OF_YEAR}": _ANY_WEEK,
        f"(in|) (which|what) (calendar|) quarter {_OF_YEAR}": _QUARTER,
        "(on|) (which|what) (day number|number day|day) of the year": _DAY,
    }
)
"""Before ``is 2021-01-03 in``."""
_NUMBER: Phrases[str] = Phrases(
    {
        "(what is|what's|) (the|) iso (calendar|) (week number|week)": _WEEK,
        "(what is|what's|) (the|) (calendar week|week number)": _ANY_WEEK,
        "(what is|what's|) (the|) (day of the year|day number)": _DAY,
        "(what is|what's|) (the|) (calendar|) quarter": _QUARTER,
    }
)
"""Before ``of 2021-01-03``."""
_IS: Phrases[bool] = Phrases({"(is|was|are|does|did|will|falls|fell|comes)": True})
_WE_ARE: Phrases[bool] = Phrases({"(it|we|today|it today|it now)": True})
_LIES: Phrases[bool] = Phrases({"(fall|be|lie|belong|come|fall on)": True})
_ENDS = frozenset({"", "?", ".", "!"})


def read_day_fact(dates: DateTerms) -> Action:
    """Read ``which ISO week is 2021-01-03 in``, ``the day of the year of March 1, 2024``."""
    cursor = dates.cursor
    read_courtesies(cursor)
    operation = _PLACE.read(cursor)
    if operation is not None and _IS.read(cursor):
        day = _placed(dates)
    elif operation is None:
        operation = _NUMBER.expect(cursor)
        cursor.expect("of", "for", "on")
        day = dates.term()
    else:
        raise cursor.misread()
    if operation == _ANY_WEEK:
        raise cursor.ambiguous("weeks are numbered in several ways; ask for the ISO week")
    return calendar_action(cursor, {"operation": operation, "date": day.reference(cursor)})


def _placed(dates: DateTerms) -> Day:
    """Read ``2021-01-03 in`` or ``July 4, 2024 fall in``; ``it`` is today."""
    cursor: Cursor = dates.cursor
    day = relative("today", dates.today) if _WE_ARE.read(cursor) else dates.term()
    _LIES.read(cursor)
    if cursor.ahead().text in _ENDS:  # otherwise a zone follows
        cursor.accept("in", "to", "now")
    return day
