"""Reads times of a day: ``9:20``, ``9:20 pm``, ``9 a.m.``, ``noon``."""

from app.adapters.providers.offline.reading.words.cursor import Cursor
from app.adapters.providers.offline.reading.words.tokens import Kind

_HALVES = ("am", "pm")
_NOON = 12
CLOCK_WORDS = (":", *_HALVES, "m", "noon", "midday")
"""One of these is in every question about a time of day."""


def read_clock(cursor: Cursor) -> tuple[int, int]:
    """Read a time as hours and minutes; midnight, which belongs to two days, is none."""
    if cursor.accept("noon", "midday"):
        return _NOON, 0
    hour, minute = cursor.number(), "0"
    told = cursor.at(":") and cursor.here.glued
    if told:
        cursor.take()
        if not cursor.here.glued:
            raise cursor.misread()
        minute = cursor.number()
    half = cursor.accept(*_HALVES) or cursor.attempt(_dotted_half)
    if not told and half is None:
        raise cursor.misread()
    goes_on = cursor.here.glued and (cursor.at(":") or cursor.here.kind is Kind.NUMBER)
    if goes_on or not (hour.isdigit() and minute.isdigit()) or (told and len(minute) != 2):
        raise cursor.misread()
    return _checked(cursor, int(hour), int(minute), half)


def _dotted_half(cursor: Cursor) -> str:
    """Read ``p.m.``, whose last dot may end the sentence as well."""
    letter = cursor.expect("a", "p")
    cursor.expect(".")
    cursor.expect("m")
    cursor.accept(".")
    return f"{letter}m"


def _checked(cursor: Cursor, hour: int, minute: int, half: str | None) -> tuple[int, int]:
    if half is not None:
        if not 1 <= hour <= _NOON:
            raise cursor.misread()
        hour = hour % _NOON + (_NOON if half == "pm" else 0)
    if hour > 23 or minute > 59:
        raise cursor.misread()
    return hour, minute
