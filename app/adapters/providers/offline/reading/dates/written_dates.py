"""Reads a day that is named by itself: ``2025-01-15``, ``July 4, 1976``, ``tomorrow``.

A date in digits is handed to the calendar tool as it is written: whether ``03/04/2025`` is in March
or in April is for the tool to refuse.
"""

from datetime import date

from app.adapters.providers.offline.reading.dates import date_words
from app.adapters.providers.offline.reading.dates.days import Day, on, relative, written
from app.adapters.providers.offline.reading.dates.periods import read_year
from app.adapters.providers.offline.reading.words.cursor import Cursor
from app.adapters.providers.offline.reading.words.tokens import Kind
from app.tools.dates.wording import WEEKDAYS

_LEAP_DAY = (2, 29)


def read_written(cursor: Cursor, today: date, towards: int = 0) -> Day:
    """Read a day.

    A day and month without a year is the next one if ``towards`` is 1 (``until December 25``), the
    last one if it is -1 (``since March 3``), and otherwise not a whole date.
    """
    cursor.accept("on")
    if (word := date_words.RELATIVE.read(cursor)) is not None:
        return relative(word, today)
    if (named := cursor.attempt(_read_weekday_and_digits)) is not None:
        return named
    if cursor.here.kind is Kind.DATE:
        return written(cursor.take().text, literal=True)
    if (digits := cursor.attempt(_read_short)) is not None:
        return written(digits, literal=True)
    return _read_spelled(cursor, today, towards)


def _read_weekday_and_digits(cursor: Cursor) -> Day:
    """Read ``Sunday, 2012-01-01``; the tool says so if the two contradict each other."""
    start = cursor.here.start
    weekday = date_words.weekday(cursor)
    cursor.accept(",", "the")
    cursor.accept("on")
    if cursor.here.kind is not Kind.DATE:
        raise cursor.misread()
    text = cursor.take().text
    day = written(text)
    if day.known is not None and WEEKDAYS[day.known.weekday()] == weekday:
        return day
    return written(cursor.taken_since(start))


def _read_short(cursor: Cursor) -> str:
    """Read ``3/4/25``, which is cut into numbers because it may be a division."""
    start = cursor.here.start
    for part in range(3):
        token = cursor.here
        if token.kind is not Kind.NUMBER or len(token.text) > 2 or (part and not token.glued):
            raise cursor.misread()
        cursor.take()
        if part < 2:
            cursor.expect("/", "-")
    return cursor.taken_since(start)


def _read_spelled(cursor: Cursor, today: date, towards: int) -> Day:
    """Read ``Monday, September 8, 2025``, ``the 8th of September 2025``, ``Christmas 2025``."""
    start = cursor.here.start
    weekday = cursor.attempt(date_words.weekday)
    if weekday is not None:
        cursor.accept(",")
    month, number = _read_month_and_number(cursor)
    place = cursor.place()
    cursor.accept(",", "of", "in")
    year = cursor.attempt(lambda at: read_year(at, today))
    if year is None:
        cursor.back(place)
        year = _year_towards(cursor, today, (month, number), towards)
    try:
        day = date(year, month, number)
    except ValueError:
        day = None
    if day is None or weekday not in {None, WEEKDAYS[day.weekday()]}:
        return written(cursor.taken_since(start))  # the tool says what is wrong with it
    return on(day)


def _read_month_and_number(cursor: Cursor) -> tuple[int, int]:
    if (named := date_words.NAMED_DAYS.read(cursor)) is not None:
        return named
    if (month := cursor.attempt(date_words.month)) is not None:
        cursor.accept("the")
        return month, date_words.day_of_month(cursor)
    cursor.accept("the")
    number = date_words.day_of_month(cursor)
    cursor.accept("of")
    return date_words.month(cursor), number


def _year_towards(cursor: Cursor, today: date, day: tuple[int, int], towards: int) -> int:
    """Return the year in which a day without a year comes next, or came last."""
    if not towards or day == _LEAP_DAY:
        raise cursor.ambiguous("the date in it has no year")
    if towards > 0:
        return today.year + (day < (today.month, today.day))
    return today.year - (day > (today.month, today.day))
