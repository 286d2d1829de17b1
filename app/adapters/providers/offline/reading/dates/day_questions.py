"""Questions that ask for a day: its date, its weekday, or both."""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Any

from app.adapters.providers.offline.reading.dates.calendar_action import calendar_action
from app.adapters.providers.offline.reading.dates.date_terms import DateTerms
from app.adapters.providers.offline.reading.dates.days import Day, Duration, relative, shifted
from app.adapters.providers.offline.reading.dates.durations import read_durations
from app.adapters.providers.offline.reading.words.action import Action
from app.adapters.providers.offline.reading.words.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.words.frames import read_courtesies


class Asked(Enum):
    """What a question wants to know of a day."""

    DATE = auto()
    DAY = auto()
    """The weekday of a date that is given; the whole date of one that is not."""
    WEEKDAY = auto()


_NOUNS: Mapping[str, Asked] = {
    "(calendar|) date": Asked.DATE,
    "day": Asked.DAY,
    "day of (the|) week": Asked.WEEKDAY,
    "(weekday|week day)": Asked.WEEKDAY,
}
_NOUN: Phrases[Asked] = Phrases(_NOUNS)
_OWNERS = ("today's", "tomorrow's", "yesterday's")
_LEADS = (
    "(on|) (what|which)",
    "(what|which) (is|was|will be|would be|will|would) (the|) (current|exact|)",
    "(what's|whats) (the|) (current|exact|)",
    "the (current|exact|)",
    "(find|find out|calculate|compute|determine|work out) (the|what|which)",
)
_ASKED: Phrases[Asked] = Phrases(
    {f"{lead} {noun}": asked for noun, asked in _NOUNS.items() for lead in _LEADS}
    | {"day of the week": Asked.WEEKDAY, "weekday": Asked.WEEKDAY, "date": Asked.DATE}
)
_VERBS: Phrases[bool] = Phrases(
    {
        "(is|was|will be|would be|will|would|does|did|comes|falls|be|are)": True,
        "(is|was|will|would|did) (it|that|this|today) (be|)": True,
        "(it|that) (is|was|will be|would be)": True,
        "(of|on|for|that is|which is|that was|that will be)": True,
        "(do|will) we have": True,
        "(do|will|would) (i|you|we) get": True,
    }
)
_COMES: Phrases[int] = Phrases(
    {
        "(comes|is|was) (right|immediately|) after": 1,
        "(comes|is|was) (right|immediately|) before": -1,
        "follows": 1,
        "precedes": -1,
    }
)
_FALLS: Phrases[bool] = Phrases(
    {
        "(fall|falls|fell|land|lands|be|come|happen|occur) (on|)": True,
        "(on|is|was|it is|is it|it be)": True,
    }
)
_PLAINLY: Phrases[bool] = Phrases(
    {
        "(when|what) (is|was|will be|would be|will|would)": True,
        "when (does|did)": True,
        "(what's|whats|when's)": True,
        "(find|calculate|compute|determine|work out)": True,
    }
)


def read_day_question(dates: DateTerms) -> Action:
    """Read ``what date is 45 days after …``, ``what day of the week was …``, ``what day is it``."""
    cursor = dates.cursor
    read_courtesies(cursor)
    asked = _ASKED.expect(cursor)
    beside = _COMES.read(cursor)
    if beside is not None:
        day = shifted(cursor, dates.term(), Duration(beside, "days"))
        return calendar_action(cursor, _asked_of(cursor, asked, day))
    while _VERBS.read(cursor):
        pass
    day = cursor.attempt(lambda _: dates.term()) or relative("today", dates.today)
    _FALLS.read(cursor)
    return calendar_action(cursor, _asked_of(cursor, asked, day))


def read_plain_day(dates: DateTerms) -> Action:
    """Read ``45 days after …``, ``what is the last day of February 2024``, ``when is …``."""
    cursor = dates.cursor
    read_courtesies(cursor)
    _PLAINLY.read(cursor)
    if (owner := cursor.accept(*_OWNERS)) is not None:
        asked = _NOUN.expect(cursor)
        day = relative(owner.removesuffix("'s"), dates.today)
        return calendar_action(cursor, _asked_of(cursor, asked, day))
    day = dates.term()
    if day.literal:
        raise cursor.ambiguous("it can be a date or a calculation; say what to do with the date")
    asked = cursor.attempt(_read_asked_late) or Asked.DATE
    _FALLS.read(cursor)
    return calendar_action(cursor, _asked_of(cursor, asked, day))


def _read_asked_late(cursor: Cursor) -> Asked:
    """Read the end of ``3 days from now, what day of the week will it be``."""
    cursor.expect(",")
    asked = _ASKED.expect(cursor)
    _VERBS.expect(cursor)
    return asked


def _asked_of(cursor: Cursor, asked: Asked, day: Day) -> Mapping[str, Any]:
    given = day.operation == "normalise" and not day.is_relative_word
    if asked is Asked.DATE or (asked is Asked.DAY and not given):
        today = day.is_relative_word and day.args["date"] == "today"
        return {"operation": "today"} if today else day.args
    if day.operation in {"add", "subtract"}:
        amount = day.args["amount"] * (1 if day.operation == "add" else -1)
        return {**day.args, "operation": "weekday", "amount": amount}
    return {"operation": "weekday", "date": day.reference(cursor)}


_RESULT: Phrases[bool] = Phrases(
    {
        "(what|which) (date|day|) (do|would|will|does) (i|you|we|one) (get|reach|have)": True,
        "(what is|what's) the (date|result) (of|)": True,
    }
)
_MOVES: Phrases[int] = Phrases(
    {
        "(add|adding)": 1,
        "(if|when) (i|you|we) add": 1,
        "(if|when) (i|you|we) (subtract|take away|deduct)": -1,
        "(subtract|subtracting|deduct|take away|take)": -1,
        "(go|count|move) (forward|forwards|ahead)": 1,
        "(go|count|move) (back|backward|backwards)": -1,
    }
)


def read_move(dates: DateTerms) -> Action:
    """Read ``add 45 days to 2025-01-15``, ``go back 3 weeks from March 5, 2024``."""
    cursor = dates.cursor
    read_courtesies(cursor)
    _RESULT.read(cursor)
    starts = cursor.here.text in _START.beginnings
    if starts and (start := cursor.attempt(lambda _: _read_start(dates))) is not None:
        return calendar_action(cursor, _moved_from(dates, start).args)
    sign = _MOVES.expect(cursor)
    durations = read_durations(cursor)
    cursor.expect("to", "from")
    day = dates.term()
    for duration in durations:
        day = shifted(cursor, day, duration if sign > 0 else duration.reversed())
    asked = cursor.attempt(_read_asked_late) or Asked.DATE
    return calendar_action(cursor, _asked_of(cursor, asked, day))


def _read_start(dates: DateTerms) -> Day:
    """Read ``Starting from 5 May 2023,``."""
    _START.expect(dates.cursor)
    day = dates.term()
    dates.cursor.expect(",")
    return day


def _moved_from(dates: DateTerms, day: Day) -> Day:
    """Read ``what is the date 10 days later`` or ``count forward 60 days``."""
    cursor = dates.cursor
    counts = _COUNTS.read(cursor)
    if counts is None:
        if _ASKED.read(cursor) is not Asked.DATE:
            raise cursor.misread()
        _VERBS.read(cursor)
    durations = read_durations(cursor)
    if counts is None:
        counts = _LATER_ON.expect(cursor)
    for duration in durations:
        day = shifted(cursor, day, duration if counts > 0 else duration.reversed())
    return day


_START: Phrases[bool] = Phrases({"(starting|counting|beginning|) (from|on|with)": True})
_COUNTS: Phrases[int] = Phrases(
    {
        "(count|go|move) (forward|forwards|ahead|on|)": 1,
        "(count|go|move) (back|backward|backwards)": -1,
        "add": 1,
        "subtract": -1,
    }
)
_LATER_ON: Phrases[int] = Phrases(
    {"(later|after that|after it|after)": 1, "(earlier|before that|before it|before)": -1}
)


_NORMALISE: Phrases[bool] = Phrases(
    {
        "(normalise|normalize|format|reformat|spell out|write out|write|rewrite|express|convert|"
        "put|show|state|print) (the date|)": True,
        "(what is|what's) the (full|whole|long|normalised|normalized) (date|form) (of|for)": True,
    }
)
_IN_FULL: Phrases[bool] = Phrases(
    {
        "(in|into|as|to) (the|a|) (full|long|written|normal|standard) (form|format|date|text|)": (
            True
        ),
        "(out|) (in|into|to|as) (words|text|full)": True,
        "out": True,
    }
)


def read_normalise(dates: DateTerms) -> Action:
    """Read ``normalise 8/9/2025`` or ``write out 2025-09-08``."""
    cursor = dates.cursor
    read_courtesies(cursor)
    told = _NORMALISE.read(cursor)
    if told is None and not cursor.mentions("words", "full", "out", "long", "form", "text"):
        raise cursor.misread()
    day = dates.term()
    if _IN_FULL.read(cursor) is None and told is None:
        raise cursor.misread()
    return calendar_action(cursor, {"operation": "normalise", "date": day.reference(cursor)})
