"""The vocabulary of dates."""

from collections.abc import Mapping

from app.adapters.providers.offline.reading.words.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.words.numerals import ordinal
from app.adapters.providers.offline.reading.words.tokens import Kind
from app.tools.dates.calculation import Unit
from app.tools.dates.wording import MONTHS, WEEKDAYS

MONTH_NUMBERS: Mapping[str, int] = (
    {name.lower(): number for number, name in enumerate(MONTHS, start=1)}
    | {name[:3].lower(): number for number, name in enumerate(MONTHS, start=1)}
    | {"sept": 9}
)
WEEKDAY_NAMES: Mapping[str, str] = (
    {name.lower(): name for name in WEEKDAYS}
    | {name[:3].lower(): name for name in WEEKDAYS if name not in {"Saturday", "Sunday"}}
    | {"tues": "Tuesday", "thur": "Thursday", "thurs": "Thursday"}
)
NAMED_DAYS: Phrases[tuple[int, int]] = Phrases(
    {
        "christmas (day|)": (12, 25),
        "christmas eve": (12, 24),
        "(new year's|new years) (day|)": (1, 1),
        "(new year's|new years) eve": (12, 31),
        "halloween": (10, 31),
        "(valentine's|valentines) day": (2, 14),
    }
)
RELATIVE: Phrases[str] = Phrases(
    {
        "(today|now|this day|today's date|the current date|the present day)": "today",
        "(tomorrow|tomorrow's date)": "tomorrow",
        "(yesterday|yesterday's date)": "yesterday",
    }
)
AROUND: Phrases[int] = Phrases({"(the|) day after tomorrow": 2, "(the|) day before yesterday": -2})
"""Days from today."""

UNITS: Phrases[tuple[int, Unit]] = Phrases(
    {
        "(calendar|) (day|days)": (1, "days"),
        "(night|nights)": (1, "days"),
        "(week|weeks)": (1, "weeks"),
        "(fortnight|fortnights)": (2, "weeks"),
        "(calendar|) (month|months)": (1, "months"),
        "(calendar|) (year|years)": (1, "years"),
        "(decade|decades)": (10, "years"),
        "(century|centuries)": (100, "years"),
        "(business|working|work) (day|days)": (1, "business_days"),
    }
)
UNIT_WORDS = frozenset(
    f"{unit}{ending}"
    for unit in ("day", "night", "week", "fortnight", "month", "year", "decade")
    for ending in ("", "s")
) | {"century", "centuries"}
"""One of these is in every length of time."""
LATER: Phrases[bool] = Phrases({"(after|from|following|past|later than|on from)": True})
EARLIER: Phrases[bool] = Phrases(
    {"(before|prior to|preceding|ahead of|earlier than|back from)": True}
)
EDGES: Phrases[int] = Phrases({"end of": -1, "(start|beginning) of": 1})
"""Days of a month or a year that have a name; -1 is the last."""
THIS_NEXT_LAST: Phrases[int] = Phrases(
    {
        "(this|the|the current|the present)": 0,
        "(next|the next|the coming)": 1,
        "(last|the last)": -1,
    }
)

_TENS = {"twenty": 20, "thirty": 30}


def day_of_month(cursor: Cursor) -> int:
    """Read ``5``, ``5th``, ``fifth`` or ``twenty-first``."""
    if cursor.here.kind is Kind.NUMBER and cursor.here.text.isdigit():
        return _checked_day(cursor, int(cursor.take().text))
    tens = _TENS.get(cursor.accept(*_TENS) or "", 0)
    if tens:
        cursor.accept("-")
    return _checked_day(cursor, tens + ordinal(cursor))


def _checked_day(cursor: Cursor, day: int) -> int:
    if not 1 <= day <= 31:
        raise cursor.misread()
    return day


def weekday(cursor: Cursor) -> str:
    """Read the name of a day of the week."""
    if cursor.here.kind is Kind.WORD and cursor.here.text in WEEKDAY_NAMES:
        return WEEKDAY_NAMES[cursor.take().text]
    raise cursor.misread()


def month(cursor: Cursor) -> int:
    """Read the name of a month, short or long."""
    if cursor.here.kind is not Kind.WORD or cursor.here.text not in MONTH_NUMBERS:
        raise cursor.misread()
    number = MONTH_NUMBERS[cursor.take().text]
    if cursor.at(".") and cursor.here.glued and cursor.ahead().kind is not Kind.END:
        cursor.take()
    return number
