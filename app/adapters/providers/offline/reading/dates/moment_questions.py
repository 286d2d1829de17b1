"""Questions about the time of day: what it is elsewhere, and what it is so many hours later."""

from collections.abc import Mapping
from typing import Any

from app.adapters.providers.offline.reading.dates.calendar_action import CALENDAR, calendar_action
from app.adapters.providers.offline.reading.dates.date_terms import DateTerms
from app.adapters.providers.offline.reading.dates.moments import Moment, read_moment
from app.adapters.providers.offline.reading.dates.zones import read_in_zone, read_zone
from app.adapters.providers.offline.reading.words.action import Action
from app.adapters.providers.offline.reading.words.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.words.frames import read_closing, read_courtesies
from app.adapters.providers.offline.reading.words.numerals import read_number
from app.tools.dates.calculation import UNIT_SECONDS

_MAX_DIGITS = 7
_NOW: Phrases[bool] = Phrases(
    {
        "what time is it (now|right now|currently|at the moment|at present|)": True,
        "(what is|what's|whats|) the (current|local|exact|) (local|) time (now|right now|)": True,
        "(current|local) (local|) time": True,
        "(what is|what's) the time (currently|at the moment)": True,
    }
)
_AT_PRESENT: Phrases[bool] = Phrases({"(now|right now|currently|at the moment|at present)": True})
_WHAT_TIME: Phrases[bool] = Phrases(
    {
        "(what|which) (local|) time (is|was|will|would) (it|that|this|) (be|)": True,
        "what (date and time|day and time|time and date) (is|was|will|would) (it|that|) (be|)": (
            True
        ),
        "(what is|what's|what was|what will be) the (local|) time": True,
    }
)
_WHEN: Phrases[bool] = Phrases(
    {"(when|if|while) (it is|it's|it was|it will be|the time is|the clock shows|)": True}
)
_CONVERT: Phrases[bool] = Phrases({"(convert|change|translate|express|put)": True})
_INTO: Phrases[bool] = Phrases({"(to|into|in)": True})
_UNITS: Phrases[str] = Phrases(
    {
        "(hours|hour|hrs|hr)": "hours",
        "(minutes|minute|mins|min)": "minutes",
        "(seconds|second|secs|sec)": "seconds",
    }
)
_LATER: Phrases[int] = Phrases({"(after|from|past|later than)": 1, "(before|prior to)": -1})
_ASKED_LATER: Phrases[bool] = Phrases(
    {
        "(what|which) time (is|was|will|would) (it|that|) (be|)": True,
        "(what date and time|when|what) (is|was|will|would) (it|that|) (be|)": True,
    }
)


def read_time_now(dates: DateTerms) -> Action:
    """Read ``what time is it in Tokyo``, ``the current time in UTC``."""
    cursor = dates.cursor
    read_courtesies(cursor)
    _NOW.expect(cursor)
    zone = cursor.attempt(read_in_zone)
    _AT_PRESENT.read(cursor)
    args = {"operation": "now"}
    return calendar_action(cursor, args if zone is None else {**args, "timezone": zone})


def read_conversion_of_time(dates: DateTerms) -> Action:
    """Read ``what time is it in Tokyo when it is 3 pm in Berlin on 3 March 2025``."""
    cursor = dates.cursor
    read_courtesies(cursor)
    moment, there = cursor.first_of(
        lambda _: _asked_first(dates),
        lambda _: _told_first(dates),
        lambda _: _told_inside(dates),
    )
    read_closing(cursor)
    return Action(CALENDAR, _converted(cursor, moment, there))


def _asked_first(dates: DateTerms) -> tuple[Moment, str]:
    """``what time is it in Tokyo when it is …``."""
    cursor = dates.cursor
    _WHAT_TIME.expect(cursor)
    there = read_in_zone(cursor)
    cursor.accept(",")
    if not _WHEN.read(cursor):
        cursor.expect("at")
    return read_moment(dates), there


def _told_first(dates: DateTerms) -> tuple[Moment, str]:
    """``when it is 3 pm in Berlin on 3 March 2025, what time is it in Tokyo``."""
    cursor = dates.cursor
    _WHEN.expect(cursor)
    moment = read_moment(dates)
    cursor.accept(",")
    _WHAT_TIME.expect(cursor)
    return moment, read_in_zone(cursor)


def _told_inside(dates: DateTerms) -> tuple[Moment, str]:
    """``convert 2025-03-03 15:00 from Berlin to Tokyo``, ``what is 2025-03-03 15:00 UTC in …``."""
    cursor = dates.cursor
    if not _CONVERT.read(cursor):
        _ASKED_LATER.expect(cursor)
    moment = read_moment(dates)
    if moment.zone is None and cursor.accept("from"):
        moment = Moment(moment.day, moment.clock, moment.written, read_zone(cursor))
        cursor.accept("time")
    _INTO.expect(cursor)
    there = read_zone(cursor)
    cursor.accept("time")
    return moment, there


def _converted(cursor: Cursor, moment: Moment, there: str) -> Mapping[str, Any]:
    args = {"operation": "convert", "date": moment.reference(cursor), "to_timezone": there}
    return args if moment.zone is None else {**args, "timezone": moment.zone}


def read_time_later(dates: DateTerms) -> Action:
    """Read ``what time is it 36 hours after 3 pm on 3 March 2025``."""
    cursor = dates.cursor
    read_courtesies(cursor)
    _ASKED_LATER.read(cursor)
    amount, unit = _length(cursor)
    sign = _LATER.expect(cursor)
    moment = read_moment(dates)
    operation = "add" if sign > 0 else "subtract"
    args = {
        "operation": operation,
        "date": moment.reference(cursor),
        "amount": amount,
        "unit": unit,
    }
    return calendar_action(
        cursor, args if moment.zone is None else args | {"timezone": moment.zone}
    )


def _length(cursor: Cursor) -> tuple[int, str]:
    """Read ``2 hours and 30 minutes`` as 150 minutes: in the shortest unit of them."""
    parts = [_part(cursor)]
    while (more := cursor.attempt(_further)) is not None:
        parts.append(more)
    unit = min((unit for _, unit in parts), key=lambda unit: UNIT_SECONDS[unit])
    return sum(count * UNIT_SECONDS[of] for count, of in parts) // UNIT_SECONDS[unit], unit


def _further(cursor: Cursor) -> tuple[int, str]:
    cursor.accept(",")
    cursor.accept("and")
    return _part(cursor)


def _part(cursor: Cursor) -> tuple[int, str]:
    if cursor.accept("an", "a", "one"):
        return 1, _UNITS.expect(cursor)
    count = read_number(cursor).text
    if not count.isdigit() or len(count) > _MAX_DIGITS:
        raise cursor.misread()
    return int(count), _UNITS.expect(cursor)
