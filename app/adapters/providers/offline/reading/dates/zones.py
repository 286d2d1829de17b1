"""Reads time zones: ``UTC``, ``America/New_York``, ``Tokyo``."""

from app.adapters.providers.offline.reading.dates.cities import city_zones
from app.adapters.providers.offline.reading.words.cursor import Cursor
from app.adapters.providers.offline.reading.words.tokens import Kind
from app.tools.dates.inputs import zone_named
from app.tools.dates.refusal import DateRefusedError

_UNIVERSAL = frozenset({"utc", "gmt"})


def read_zone(cursor: Cursor) -> str:
    """Read a zone, and return its IANA name."""
    if cursor.here.kind is not Kind.WORD:
        raise cursor.misread()
    if cursor.here.text in _UNIVERSAL:
        return cursor.take().text.upper()
    if cursor.ahead().text == "/":
        return _read_path(cursor)
    return city_zones().expect(cursor)


def _read_path(cursor: Cursor) -> str:
    start = cursor.take().start
    while cursor.at("/") and cursor.here.glued and cursor.ahead().kind is Kind.WORD:
        cursor.take()
        cursor.take()
    try:
        return zone_named(cursor.taken_since(start)).key
    except DateRefusedError:
        raise cursor.misread() from None


def read_in_zone(cursor: Cursor) -> str:
    """Read ``in Tokyo``, ``in UTC`` or ``in Berlin time``."""
    cursor.expect("in")
    zone = read_zone(cursor)
    cursor.accept("time")
    return zone
