"""A day that the question takes for today: ``if today is 2025-03-01, what date is tomorrow``."""

from collections.abc import Mapping
from dataclasses import replace
from datetime import date, timedelta
from typing import Any

from app.adapters.providers.offline.reading.dates.date_terms import DateTerms
from app.adapters.providers.offline.reading.words.action import Action, Reading
from app.adapters.providers.offline.reading.words.cursor import (
    Cursor,
    MisreadError,
    Phrases,
    new_cursor,
)
from app.adapters.providers.offline.reading.words.frames import read_courtesies
from app.adapters.providers.offline.reading.words.tokens import TooLongError
from app.tools.dates.inputs import RELATIVE_DAYS

_SUPPOSED: Phrases[bool] = Phrases(
    {
        "(if|suppose|assume|assuming|given|say|supposing|) (that|) (today|today's date|"
        "the current date|it) (is|was|were)": True,
        "(it's|today's)": True,
    }
)


def supposed_today(question: str, today: date) -> tuple[str, date] | None:
    """Return the question proper and the day it supposes; None if it supposes none."""
    try:
        cursor = new_cursor(question)
        read_courtesies(cursor)
        day = _read(cursor, today)
    except (MisreadError, TooLongError):
        return None
    return cursor.source[cursor.here.start :], day


def _read(cursor: Cursor, today: date) -> date:
    _SUPPOSED.expect(cursor)
    day = DateTerms(cursor, today).term()
    cursor.expect(",", ".", ";")
    if day.known is None or day.is_relative_word:
        raise cursor.misread()
    return day.known


def with_today(reading: Reading, today: date) -> Reading:
    """Return the reading with ``today`` in the place of the day on which it is carried out."""
    actions = tuple(replace(action, args=_dated(action, today)) for action in reading.actions)
    return replace(reading, actions=actions)


def _dated(action: Action, today: date) -> Mapping[str, Any]:
    args = dict(action.args)
    if action.tool != "calendar":
        return args
    if args["operation"] == "today":
        args |= {"operation": "normalise", "date": "today"}
    if args["operation"] == "until":
        args = {"date": "today", "end_date": "today"} | args
    for name in {"date", "end_date"} & args.keys():
        word, space, time = args[name].partition(" ")  # a time may stand after the day
        if word in RELATIVE_DAYS:
            day = today + timedelta(days=RELATIVE_DAYS[word])
            args[name] = f"{day.isoformat()}{space}{time}"
    return args


def asks_for_now(reading: Reading) -> bool:
    """Tell whether a question asks for the time of day, which no supposed day has."""
    return any(action.args.get("operation") == "now" for action in reading.actions)
