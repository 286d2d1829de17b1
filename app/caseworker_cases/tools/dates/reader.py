"""Parses written dates and times; raises ``ToolRefusedError`` for anything else.

ISO 8601 is tried first. Everything else is parsed by dateparser in English, regardless of the
locale, under each order of day, month and year. A date that two orders read differently is refused,
and the message names both readings. Nothing is guessed: a date needs a day, a month and a year of
four digits. Every word must belong to the date, because dateparser skips words that it does not
need.

A local time identifies an instant only with its zone. Some local times do not exist when clocks go
forward, and some occur twice when clocks go back. Both are refused, and the message names the two
possible instants.
"""

import asyncio
import re
from collections.abc import Sequence
from datetime import UTC, date, datetime, time, tzinfo
from functools import cache
from typing import Any
from zoneinfo import ZoneInfo

from caseworker.tools.ports import ToolRefusedError
from caseworker_cases.tools.dates.calculation import (
    MONTHS,
    WEEKDAYS,
    invalid_date,
    month_and_day,
    weekday_name,
)

MAX_LENGTH = 64

_ORDERS = ("DMY", "MDY", "YMD")
_WORD = re.compile(r"[A-Za-z]+|\d+", re.ASCII)
_SHAPE = re.compile(r"[A-Za-z0-9 ,./-]+", re.ASCII)
_YEAR_FIRST = re.compile(r"(\d{4})([-/.])(\d{1,2})\2(\d{1,2})", re.ASCII)
_ISO_START = re.compile(r"\d{4}-?(\d{2}-?\d{2}|W\d{2})", re.ASCII)
_SMALL_WORDS = frozenset({"st", "nd", "rd", "th", "of", "the"})
_ISO_MOMENT = re.compile(r"\d{4}-?(?:\d\d-?\d\d|W\d\d-?\d)[^\d+-]\d\d.*", re.ASCII)
_DATE_AND_TIME = re.compile(
    r"(?P<date>.+?)(?:,\s*|\s+)(?:at\s+)?(?P<hour>\d{1,2})(?::(?P<minute>\d\d))?"
    r"(?::(?P<second>\d\d))?(?:\s*(?P<half>[ap])\.?m\b\.?)?",
    re.ASCII | re.IGNORECASE,
)
_NOON = 12


def _abbreviations(names: tuple[str, ...], *more: str) -> frozenset[str]:
    words = {name.lower() for name in names} | {name[:3].lower() for name in names}
    return frozenset(words | set(more))


_MONTH_WORDS = _abbreviations(MONTHS, "sept")
_WEEKDAY_WORDS = _abbreviations(WEEKDAYS, "tues", "thur", "thurs")
_WEEKDAY = re.compile(rf"\b({'|'.join(sorted(_WEEKDAY_WORDS))})\b[.,]*", re.ASCII | re.IGNORECASE)


class DateReader:
    """Parses written dates."""

    async def load(self) -> None:
        """Load dateparser in a thread, where its 0.1 s do not block the event loop.

        Otherwise the first call of :meth:`read` that needs it loads it.
        """
        if not _parsers.cache_info().currsize:
            await asyncio.to_thread(_parsers)

    def read(self, text: str, zone: tzinfo) -> date:
        """Parse a date. An instant with an offset is converted to ``zone`` first."""
        text = " ".join(text.split()) if len(text) <= MAX_LENGTH else ""
        if not text.isascii() or not text:
            raise _unreadable(text)
        if _ISO_START.match(text):
            return _read_iso(text, zone)
        if year_first := _YEAR_FIRST.fullmatch(text):
            try:
                return date(*(int(part) for part in year_first.group(1, 3, 4)))
            except ValueError:
                raise _unreadable(text) from None
        words = [word.lower() for word in _WORD.findall(text)]
        _check_words(text, words)
        readings = self._readings(_WEEKDAY.sub("", text))
        if len(readings) > 1:
            raise _ambiguous(text, readings)
        if not any(word.isdigit() and len(word) == 4 for word in words):
            raise invalid_date(f"{text!r} has no year of four digits; write the year in full")
        if not readings:
            raise _unreadable(text)
        _check_weekday(text, words, readings[0])
        return readings[0]

    def _readings(self, text: str) -> list[date]:
        """Return the distinct dates that the orders yield for ``text``, in the order of trying."""
        moments = (parser.get_date_data(text).date_obj for parser in _parsers())
        return list(dict.fromkeys(moment.date() for moment in moments if moment is not None))


@cache
def _parsers() -> Sequence[Any]:
    """Return a parser for each order, ready for use."""
    from dateparser.date import DateDataParser  # with its data, it takes 8 MB

    parsers = [DateDataParser(languages=["en"], settings=_settings(order)) for order in _ORDERS]
    for parser in parsers:
        parser.get_date_data("1 January 2000")
    return parsers


def _settings(order: str) -> dict[str, object]:
    return {
        "DATE_ORDER": order,
        "PREFER_LOCALE_DATE_ORDER": False,
        "PARSERS": ["absolute-time"],
        "REQUIRE_PARTS": ["day", "month", "year"],
        "STRICT_PARSING": True,
        # Never used, because every part is required; rules out the process's clock.
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


def _check_words(text: str, words: list[str]) -> None:
    """Refuse a text with more or less than one complete date."""
    names = [word for word in words if not word.isdigit()]
    months = sum(word in _MONTH_WORDS for word in names)
    are_date_words = all(word in _MONTH_WORDS | _WEEKDAY_WORDS | _SMALL_WORDS for word in names)
    numbers = len(words) - len(names)
    if not are_date_words or not _SHAPE.fullmatch(text) or months > 1 or numbers + months > 3:
        raise _unreadable(text)
    if numbers + months < 3:
        raise invalid_date(
            f"{text!r} is not a whole date; give a day, a month and a year, like 2025-09-08"
        )


def _check_weekday(text: str, words: list[str], day: date) -> None:
    right = weekday_name(day)
    for word in words:
        if word in _WEEKDAY_WORDS and not right.lower().startswith(word[:3]):
            raise invalid_date(f"{text!r} contradicts itself: {month_and_day(day)} is a {right}")


def _ambiguous(text: str, readings: list[date]) -> ToolRefusedError:
    spoken = " or ".join(month_and_day(day) for day in readings)
    written = " or ".join(day.isoformat() for day in readings)
    return ToolRefusedError(
        f"{text!r} can be read as {spoken}; write it as {written}", code="ambiguous_date"
    )


def _unreadable(text: str) -> ToolRefusedError:
    subject = repr(text) if text else "the text"
    return invalid_date(
        f"{subject} is not a date that exists and can be read; write dates like 2025-09-08"
    )


def iso_moment(text: str) -> datetime | None:
    """Parse an ISO 8601 date with a time; return None if the text is not one.

    The offset is optional.
    """
    if not _ISO_MOMENT.fullmatch(text):
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def split_time(text: str) -> tuple[str, time] | None:
    """Split text such as ``March 3, 2025 at 3 pm`` into its date and time; None without a time."""
    match = _DATE_AND_TIME.fullmatch(text)
    if match is None or (match["minute"] is None and match["half"] is None):
        return None  # a number alone can be a day or a year
    if iso_moment(match["date"]) is not None:  # such as 10:00 05:30, an offset without its sign
        raise invalid_date(
            f"{text!r} has two times of day; write one, with its offset if need be, like "
            "2025-09-08T15:30+02:00"
        )
    hour, half = int(match["hour"]), match["half"]
    if half is not None:
        hour = hour % _NOON + (_NOON if half in "pP" else 0) if 1 <= hour <= _NOON else -1
    try:
        return match["date"], time(hour, int(match["minute"] or 0), int(match["second"] or 0))
    except ValueError:
        message = f"{text!r} has no time of day that exists; write it like 2025-09-08T15:30"
        raise invalid_date(message) from None


def instant_of(local: datetime, zone: ZoneInfo) -> datetime:
    """Return the instant of a local time in ``zone``.

    Raises:
        ToolRefusedError: the local time does not exist or occurs twice because clocks change.
    """
    before, after = (local.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
    if before.utcoffset() == after.utcoffset():
        return before
    readings = sorted(moment.astimezone(UTC) for moment in (before, after))
    written = " or ".join(moment.astimezone(zone).isoformat() for moment in readings)
    local_text = f"{local.isoformat(sep=' ', timespec='minutes')} in {zone.key}"
    if readings[0].astimezone(zone).replace(tzinfo=None, fold=0) == local:
        raise ToolRefusedError(
            f"{local_text} comes twice, because clocks are set back; write it as {written}",
            code="ambiguous_date",
        )
    raise invalid_date(
        f"{local_text} does not exist, because clocks are put forward; write {written}"
    )
