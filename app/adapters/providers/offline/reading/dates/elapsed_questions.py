"""Questions about the time between two dates with a time of day.

Both times are instants, so hours that clocks skip or repeat in between are counted right.
"""

from collections.abc import Mapping
from typing import Any

from app.adapters.providers.offline.reading.dates.calendar_action import CALENDAR
from app.adapters.providers.offline.reading.dates.date_terms import DateTerms
from app.adapters.providers.offline.reading.dates.moments import Moment, read_moment
from app.adapters.providers.offline.reading.words.action import Action
from app.adapters.providers.offline.reading.words.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.words.frames import read_closing, read_courtesies

_UNITS: Phrases[str] = Phrases(
    {
        "(hours|hrs)": "hours",
        "(minutes|mins)": "minutes",
        "(seconds|secs)": "seconds",
    }
)
_HOW_MANY: Phrases[bool] = Phrases(
    {
        "how many": True,
        "(what is|what's|) (the|) number of": True,
        "(what is|what's|) the (difference|time) in": True,
    }
)
_HOW_LONG: Phrases[bool] = Phrases(
    {
        "how long (is it|was it|is|was|does it take|did it take|)": True,
        "how much time (is there|was there|is|was|passes|passed|)": True,
        "(what is|what's) the (time|difference|time difference)": True,
    }
)
_THERE: Phrases[bool] = Phrases(
    {
        "(are|were|is|was) (there|it|)": True,
        "(pass|passed|elapse|elapsed|lie|passes)": True,
        "(have|had) (passed|elapsed)": True,
    }
)


def read_elapsed(dates: DateTerms) -> Action:
    """Read ``how many hours are there between 2025-03-01 10:00 and 2025-03-02 12:30``."""
    cursor = dates.cursor
    read_courtesies(cursor)
    unit = None
    if _HOW_MANY.read(cursor):
        unit = _UNITS.expect(cursor)
    else:
        _HOW_LONG.expect(cursor)
    while _THERE.read(cursor):
        pass
    opening = cursor.expect("between", "from")
    first = read_moment(dates)
    cursor.expect(*(("and",) if opening == "between" else ("to", "until", "till")))
    second = read_moment(dates)
    _check_order(cursor, first, second)
    args = _between(cursor, first.on(second.day), second)
    if unit is None and cursor.accept("in"):
        unit = _UNITS.expect(cursor)
    read_closing(cursor)
    return Action(CALENDAR, dict(args) if unit is None else {**args, "unit": unit})


def _check_order(cursor: Cursor, first: Moment, second: Moment) -> None:
    """Refuse ``from 10 pm to 6 am on 3 March 2025``: one of the two is on another day."""
    if first.dated or first.zone is not None or first.clock is None or second.clock is None:
        return
    if first.clock >= second.clock:
        raise cursor.ambiguous("the second time is not later on the same day; give both dates")


def _between(cursor: Cursor, first: Moment, second: Moment) -> Mapping[str, Any]:
    """Return the operation; a zone at the end is for both times."""
    args: dict[str, Any] = {
        "operation": "elapsed",
        "date": first.reference(cursor),
        "end_date": second.reference(cursor),
    }
    here, there = first.zone or second.zone, second.zone
    if first.zone is not None and there is None and not second.located:
        raise cursor.ambiguous("it does not say in which zone the second time is")
    if here is not None:
        args["timezone"] = here
    if there is not None and there != here:
        args["to_timezone"] = there
    return args
