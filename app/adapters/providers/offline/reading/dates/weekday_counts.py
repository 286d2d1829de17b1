"""Questions that count on from a weekday: ``If today is Monday, what day is it in 3 days``.

Any day with that name will do to count from, so one near today is given to the calendar; only
days and weeks lead from one weekday to a certain other one.
"""

from datetime import timedelta

from app.adapters.providers.offline.reading.dates import date_words
from app.adapters.providers.offline.reading.dates.calendar_action import calendar_action
from app.adapters.providers.offline.reading.dates.date_terms import DateTerms
from app.adapters.providers.offline.reading.dates.days import Duration
from app.adapters.providers.offline.reading.dates.durations import read_durations
from app.adapters.providers.offline.reading.words.action import Action
from app.adapters.providers.offline.reading.words.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.words.frames import read_courtesies
from app.tools.dates.wording import WEEKDAYS

_TODAY_IS: Phrases[bool] = Phrases(
    {"(if|suppose|assume|assuming|given|say|) (that|) (today|it|today's day) (is|was) (a|)": True}
)
_ASKED: Phrases[bool] = Phrases(
    {
        "(on|) (what|which) (day|weekday|day of the week)": True,
        "(what|which) (is|was|will be) the (day|weekday|day of the week)": True,
    }
)
_IS: Phrases[bool] = Phrases(
    {
        "(is|was|will|would) (it|that) (be|)": True,
        "(comes|is|was|falls|lies|will be|would be|it is|it will be)": True,
    }
)
_NEAR: Phrases[int] = Phrases(
    {"tomorrow": 1, "yesterday": -1, "the day after tomorrow": 2, "the day before yesterday": -2}
)
_ON: Phrases[int] = Phrases(
    {"(from now|from today|later|hence|after today|after that)": 1, "(ago|earlier|before that)": -1}
)
_NEXT_TO: Phrases[int] = Phrases(
    {
        "(what|which) (day|weekday) (comes|is) (right|directly|immediately|) after": 1,
        "(what|which) (day|weekday) (comes|is) (right|directly|immediately|) before": -1,
        "(what|which) (day|weekday) follows": 1,
        "(what|which) (day|weekday) precedes": -1,
        "what is the day after": 1,
        "what is the day before": -1,
    }
)
_UNITS = frozenset({"days", "weeks"})


def read_weekday_count(dates: DateTerms) -> Action:
    """Read ``which weekday comes 10 days after Tuesday``, ``if today is Monday, what day is …``."""
    cursor = dates.cursor
    read_courtesies(cursor)
    known = cursor.attempt(_today_is)
    if known is None and (beside := cursor.attempt(_beside)) is not None:
        return calendar_action(cursor, _asked_of(dates, *beside))
    _ASKED.expect(cursor)
    _IS.read(cursor)
    if known is None:
        length = _length(cursor)
        back = not date_words.LATER.read(cursor) and date_words.EARLIER.expect(cursor)
        cursor.accept("a", "the")
        known = date_words.weekday(cursor)
    else:
        length, back = cursor.first_of(_near, _inside, _on_from)
    cursor.accept("be")
    return calendar_action(cursor, _asked_of(dates, known, length.reversed() if back else length))


def _asked_of(dates: DateTerms, weekday: str, length: Duration) -> dict[str, object]:
    """Return the weekday that lies so far from one that is named."""
    distance = (WEEKDAYS.index(weekday) - dates.today.weekday()) % 7
    day = (dates.today + timedelta(days=distance)).isoformat()
    return {"operation": "weekday", "date": day, "amount": length.amount, "unit": length.unit}


def _today_is(cursor: Cursor) -> str:
    _TODAY_IS.expect(cursor)
    weekday = date_words.weekday(cursor)
    cursor.expect(",", ".", ";")
    return weekday


def _beside(cursor: Cursor) -> tuple[str, Duration]:
    """Read ``what day comes after Saturday``, ``what is the day before Monday``."""
    distance = _NEXT_TO.expect(cursor)
    return date_words.weekday(cursor), Duration(distance, "days")


def _length(cursor: Cursor) -> Duration:
    found = read_durations(cursor)
    if len(found) != 1 or found[0].unit not in _UNITS:
        raise cursor.misread()
    return found[0]


def _near(cursor: Cursor) -> tuple[Duration, bool]:
    return Duration(_NEAR.expect(cursor), "days"), False


def _inside(cursor: Cursor) -> tuple[Duration, bool]:
    cursor.expect("in")
    found = _length(cursor)
    cursor.accept("time")
    return found, False


def _on_from(cursor: Cursor) -> tuple[Duration, bool]:
    return _length(cursor), _ON.expect(cursor) < 0
