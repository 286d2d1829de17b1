"""Questions which of two days, or of two times, comes first."""

from app.adapters.providers.offline.reading.dates.calendar_action import calendar_action
from app.adapters.providers.offline.reading.dates.date_terms import DateTerms
from app.adapters.providers.offline.reading.dates.moments import read_moment
from app.adapters.providers.offline.reading.words.action import Action
from app.adapters.providers.offline.reading.words.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.words.frames import read_courtesies

_EARLIER, _LATER = "earlier", "later"
_WHICH: Phrases[bool] = Phrases(
    {
        "(which|what) (date|day|one|time|of them|)": True,
        "(which|what) of (these|the two) (dates|days|)": True,
    }
)
_COMES: Phrases[bool] = Phrases(
    {"(came|comes|is|was|happened|falls|lies|occurred|will be|will come)": True}
)
_ORDER: Phrases[str] = Phrases(
    {
        "(the|) (first|earlier|sooner) (one|date|day|)": _EARLIER,
        "(the|) (last|later) (one|date|day|)": _LATER,
    }
)
_OF_TWO: Phrases[str] = Phrases(
    {
        "(what is|what's|which is|) the (earlier|first) (date|day|one|) of": _EARLIER,
        "(what is|what's|which is|) the later (date|day|one|) of": _LATER,
    }
)
_OF: Phrases[bool] = Phrases({"(which|what) (date|day|one|) of": True})


def read_day_order(dates: DateTerms) -> Action:
    """Read ``which came first, July 20, 1969 or November 9, 1989``."""
    cursor = dates.cursor
    read_courtesies(cursor)
    operation = _OF_TWO.read(cursor) or cursor.attempt(_asked)
    if operation is None:
        _OF.expect(cursor)
    cursor.accept(",", ":", "-")
    first = _day(dates)
    cursor.accept(",")
    cursor.expect("or", "and")
    second = _day(dates)
    if operation is None:
        _COMES.expect(cursor)
        operation = _ORDER.expect(cursor)
    return calendar_action(cursor, {"operation": operation, "date": first, "end_date": second})


def _asked(cursor: Cursor) -> str:
    """Read ``which came first`` or ``which date is the later one``."""
    _WHICH.expect(cursor)
    _COMES.expect(cursor)
    return _ORDER.expect(cursor)


def _day(dates: DateTerms) -> str:
    cursor: Cursor = dates.cursor
    place = cursor.place()
    moment = cursor.attempt(lambda _: read_moment(dates))
    if moment is not None and moment.dated and moment.zone is None:
        return moment.reference(cursor)
    cursor.back(place)
    return dates.term().reference(cursor)
