"""Reads a date as somebody wrote it, or says why it cannot be read in one way only.

ISO 8601 comes first. Everything else goes through dateparser, in English whatever the locale,
under each order of day, month and year; a date that two orders read differently is refused, and
the message names both readings (seed 002, 25.3 and 25.4). Nothing is guessed: a date needs a day,
a month and a year of four digits, and every word in it must belong to the date, because dateparser
passes over words that it does not need.
"""

import re
from datetime import date, datetime, tzinfo

from app.tools.dates.refusal import DateRefusedError
from app.tools.dates.wording import MONTHS, WEEKDAYS, month_and_day, weekday_name

MAX_LENGTH = 64
"""Characters of the longest date."""

_ORDERS = ("DMY", "MDY", "YMD")
_WORD = re.compile(r"[A-Za-z]+|\d+", re.ASCII)
_SHAPE = re.compile(r"[A-Za-z0-9 ,./-]+", re.ASCII)
_YEAR_FIRST = re.compile(r"(\d{4})([-/.])(\d{1,2})\2(\d{1,2})", re.ASCII)
_ISO_START = re.compile(r"\d{4}-?(\d{2}-?\d{2}|W\d{2})", re.ASCII)
_SMALL_WORDS = frozenset({"st", "nd", "rd", "th", "of", "the"})


def _abbreviations(names: tuple[str, ...], *more: str) -> frozenset[str]:
    words = {name.lower() for name in names} | {name[:3].lower() for name in names}
    return frozenset(words | set(more))


_MONTH_WORDS = _abbreviations(MONTHS, "sept")
_WEEKDAY_WORDS = _abbreviations(WEEKDAYS, "tues", "thur", "thurs")
_WEEKDAY = re.compile(rf"\b({'|'.join(sorted(_WEEKDAY_WORDS))})\b[.,]*", re.ASCII | re.IGNORECASE)


class DateReader:
    """Reads written dates; made once, because importing and warming dateparser takes 0.3 s."""

    def __init__(self) -> None:
        # Imported here so that a process without the calendar tool does not pay for it.
        from dateparser.date import DateDataParser

        self._parsers = [
            DateDataParser(languages=["en"], settings=_settings(order)) for order in _ORDERS
        ]
        self._readings("1 January 2000")

    def read(self, text: str, zone: tzinfo) -> date:
        """Return the date that ``text`` names; an instant with an offset is moved to ``zone``.

        Raises:
            DateRefusedError: the text is no date, lacks a part, or can be read in two ways.
        """
        text = " ".join(text.split()) if len(text) <= MAX_LENGTH else ""
        if not text.isascii() or not text:
            raise _unreadable(text)
        if _ISO_START.match(text):
            return _read_iso(text, zone)
        if year_first := _YEAR_FIRST.fullmatch(text):
            return _year_month_day(text, *(int(part) for part in year_first.group(1, 3, 4)))
        words = [word.lower() for word in _WORD.findall(text)]
        _check_words(text, words)
        readings = self._readings(_WEEKDAY.sub("", text))
        if len(readings) > 1:
            raise _ambiguous(text, readings)
        if not any(word.isdigit() and len(word) == 4 for word in words):
            raise DateRefusedError(
                f"{text!r} has no year of four digits; write the year in full", code="invalid_date"
            )
        if not readings:
            raise _unreadable(text)
        _check_weekday(text, words, readings[0])
        return readings[0]

    def _readings(self, text: str) -> list[date]:
        """Return the different dates that the orders make of ``text``, in the order of trying."""
        found = (parser.get_date_data(text).date_obj for parser in self._parsers)
        return list(dict.fromkeys(moment.date() for moment in found if moment is not None))


def _settings(order: str) -> dict[str, object]:
    return {
        "DATE_ORDER": order,
        "PREFER_LOCALE_DATE_ORDER": False,
        "PARSERS": ["absolute-time"],
        "REQUIRE_PARTS": ["day", "month", "year"],
        "STRICT_PARSING": True,
        # Never used, as every part is required; it keeps the process's clock out of the reading.
        "RELATIVE_BASE": datetime(2000, 1, 1),  # noqa: DTZ001
    }


def _read_iso(text: str, zone: tzinfo) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        pass
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo is None else moment.astimezone(zone)).date()
    except (ValueError, OverflowError):
        raise _unreadable(text) from None


def _year_month_day(text: str, year: int, month: int, day: int) -> date:
    try:
        return date(year, month, day)
    except ValueError:
        raise _unreadable(text) from None


def _check_words(text: str, words: list[str]) -> None:
    """Refuse what is more than a date, and a date that is less than one."""
    names = [word for word in words if not word.isdigit()]
    months = sum(word in _MONTH_WORDS for word in names)
    known = all(word in _MONTH_WORDS | _WEEKDAY_WORDS | _SMALL_WORDS for word in names)
    numbers = len(words) - len(names)
    if not known or not _SHAPE.fullmatch(text) or months > 1 or numbers + months > 3:
        raise _unreadable(text)
    if numbers + months < 3:
        raise DateRefusedError(
            f"{text!r} is not a whole date; give a day, a month and a year, like 2025-09-08",
            code="invalid_date",
        )


def _check_weekday(text: str, words: list[str], day: date) -> None:
    right = weekday_name(day)
    for word in words:
        if word in _WEEKDAY_WORDS and not right.lower().startswith(word[:3]):
            raise DateRefusedError(
                f"{text!r} contradicts itself: {month_and_day(day)} is a {right}",
                code="invalid_date",
            )


def _ambiguous(text: str, readings: list[date]) -> DateRefusedError:
    spoken = " or ".join(month_and_day(day) for day in readings)
    written = " or ".join(day.isoformat() for day in readings)
    return DateRefusedError(
        f"{text!r} can be read as {spoken}; write it as {written}", code="ambiguous_date"
    )


def _unreadable(text: str) -> DateRefusedError:
    shown = repr(text) if text else "the text"
    return DateRefusedError(
        f"{shown} is not a date that exists and can be read; write dates like 2025-09-08",
        code="invalid_date",
    )
