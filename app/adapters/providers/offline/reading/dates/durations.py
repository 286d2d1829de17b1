"""Reads lengths of time: ``45 days``, ``a week``, ``1 year, 2 months and 3 days``."""

from app.adapters.providers.offline.reading.dates import date_words
from app.adapters.providers.offline.reading.dates.days import Duration
from app.adapters.providers.offline.reading.words.cursor import Cursor
from app.adapters.providers.offline.reading.words.numerals import read_number

_MAX_DIGITS = 7
_DAYS = {"days": 1, "weeks": 7}
_MONTHS = {"months": 1, "years": 12}


def read_durations(cursor: Cursor) -> list[Duration]:
    """Read one length of time; in several units it becomes months, then days."""
    cursor.accept("exactly")
    found = [_read_one(cursor)]
    while (more := cursor.attempt(_read_more)) is not None:
        found.append(more)
    if len(found) == 1 or any(part.unit == "business_days" for part in found):
        return found
    months = sum(part.amount * _MONTHS.get(part.unit, 0) for part in found)
    days = sum(part.amount * _DAYS.get(part.unit, 0) for part in found)
    merged = [Duration(months, "months"), Duration(days, "days")]
    return [part for part in merged if part.amount] or merged[:1]


def _read_more(cursor: Cursor) -> Duration:
    comma, word = cursor.accept(","), cursor.accept("and")
    if comma is None and word is None:
        raise cursor.misread()
    return _read_one(cursor)


def _read_one(cursor: Cursor) -> Duration:
    if (single := cursor.attempt(_read_single)) is not None:
        return single
    count = _count(cursor)
    if len(str(count)) > _MAX_DIGITS:
        raise cursor.misread()
    if cursor.at("-") and cursor.here.glued and cursor.ahead().glued:
        cursor.take()  # 14-day
    factor, unit = date_words.UNITS.expect(cursor)
    return Duration(count * factor, unit)


def _count(cursor: Cursor) -> int:
    """Read ``45``, ``3 * 7`` or ``(10 + 5) * 2``."""
    count = _factor(cursor)
    while cursor.accept("*", "x", "times"):
        count *= _factor(cursor)
    return count


def _factor(cursor: Cursor) -> int:
    if cursor.accept("("):
        count = _count(cursor)
        while (sign := cursor.accept("+", "plus", "-", "minus")) is not None:
            more = _count(cursor)
            count += more if sign in {"+", "plus"} else -more
        cursor.expect(")")
        if count < 0:
            raise cursor.misread()
        return count
    number = read_number(cursor).text
    if not number.isdigit() or len(number) > _MAX_DIGITS:
        raise cursor.misread()
    return int(number)


def _read_single(cursor: Cursor) -> Duration:
    """Read ``a week``, but nothing of ``a hundred weeks``."""
    cursor.expect("a", "an")
    factor, unit = date_words.UNITS.expect(cursor)
    return Duration(factor, unit)
