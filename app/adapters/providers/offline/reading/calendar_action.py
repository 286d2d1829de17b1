"""The end of every question about dates: its zone, and the tool call."""

from collections.abc import Mapping
from typing import Any

from app.adapters.providers.offline.reading.action import Action
from app.adapters.providers.offline.reading.cursor import Cursor
from app.adapters.providers.offline.reading.frames import read_closing
from app.adapters.providers.offline.reading.tokens import Kind
from app.tools.dates.inputs import zone_named
from app.tools.dates.refusal import DateRefusedError

CALENDAR = "calendar"
_UNIVERSAL = frozenset({"utc", "gmt"})


def calendar_action(cursor: Cursor, args: Mapping[str, Any]) -> Action:
    """Read the rest of the question, and return the call of the calendar."""
    zone = cursor.attempt(_read_zone)
    read_closing(cursor)
    return Action(CALENDAR, dict(args) if zone is None else {**args, "timezone": zone})


def _read_zone(cursor: Cursor) -> str:
    """Read ``in UTC`` or ``in America/New_York``."""
    cursor.expect("in")
    if cursor.here.text not in _UNIVERSAL and cursor.ahead().text != "/":
        raise cursor.misread()
    start = cursor.take().start
    while cursor.at("/") and cursor.here.glued and cursor.ahead().kind is Kind.WORD:
        cursor.take()
        cursor.take()
    name = cursor.taken_since(start)
    if name.lower() in _UNIVERSAL:
        return name.upper()
    try:
        return zone_named(name).key
    except DateRefusedError:
        raise cursor.misread() from None
