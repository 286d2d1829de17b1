"""Reads months and years: ``February 2024``, ``next month``, ``the year 2024``."""

from datetime import date

from app.adapters.providers.offline.reading.dates import date_words
from app.adapters.providers.offline.reading.words.cursor import Cursor
from app.adapters.providers.offline.reading.words.tokens import Kind

_YEAR_DIGITS = 4


def read_year(cursor: Cursor, today: date) -> int:
    """Read ``2024``, ``the year 2024``, ``this year`` or ``next year``."""
    place = cursor.place()
    cursor.accept("the")
    cursor.accept("year")
    text = cursor.here.text
    if cursor.here.kind is Kind.NUMBER and text.isdigit() and len(text) == _YEAR_DIGITS:
        if int(text) == 0:
            raise cursor.misread()
        return int(cursor.take().text)
    cursor.back(place)
    distance = date_words.THIS_NEXT_LAST.expect(cursor)
    cursor.expect("year")
    return today.year + distance


def read_month(cursor: Cursor, today: date) -> tuple[int, int]:
    """Read ``February 2024``, ``May of next year`` or ``this month``; return year and month."""
    if (month := cursor.attempt(date_words.month)) is not None:
        cursor.accept(",", "of", "in")
        return read_year(cursor, today), month
    distance = date_words.THIS_NEXT_LAST.expect(cursor)
    cursor.expect("month")
    months = today.year * 12 + today.month - 1 + distance
    return months // 12, months % 12 + 1
