"""Dates with a time of day: as people write them, in a zone, and in words.

A local time is an instant only with its zone. When clocks are put forward some local times are
left out, and when they are set back some come twice; both are refused, and the message names the
two instants that can be meant.
"""

import re
from datetime import UTC, datetime, time
from zoneinfo import ZoneInfo

from app.tools.dates.refusal import DateRefusedError
from app.tools.dates.wording import in_words

_CLOCK = (
    r"(?P<hour>\d{1,2})(?::(?P<minute>\d\d))?(?::(?P<second>\d\d))?"
    r"(?:\s*(?P<half>[ap])\.?m\b\.?)?"
)
_LAST = re.compile(rf"(?P<date>.+?)(?:,\s*|\s+)(?:at\s+)?{_CLOCK}", re.ASCII | re.IGNORECASE)
_FIRST = re.compile(rf"(?:at\s+)?{_CLOCK}(?:,\s*|\s+)(?:on\s+)?(?P<date>.+)", re.ASCII | re.I)
_ISO = re.compile(r"\d{4}-?(?:\d\d-?\d\d|W\d\d-?\d)[^\d+-]\d\d.*", re.ASCII)
_WORDS = re.compile(r"\b(noon|midday|midnight)\b", re.ASCII | re.IGNORECASE)
_NOON = 12


def iso_moment(text: str) -> datetime | None:
    """Return what ISO 8601 makes of a date with a time, with or without an offset."""
    if not _ISO.fullmatch(text):
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None


def split(text: str) -> tuple[str, time] | None:
    """Return the date, as written, and the time of ``March 3, 2025 at 3 pm``; None without a time.

    Raises:
        DateRefusedError: the time does not exist or belongs to two days, or there are two of them.
    """
    if word := _WORDS.search(text):
        if word[0].lower() == "midnight":
            raise DateRefusedError(
                f"{text!r} can be the beginning or the end of the day; write 00:00 and the date "
                "that it begins",
                code="ambiguous_date",
            )
        text = _WORDS.sub("12:00", text)
    found = _LAST.fullmatch(text)
    if found is None or not _tells_time(found):
        found = _FIRST.fullmatch(text)
    if found is None or not _tells_time(found):
        return None
    if iso_moment(found["date"]) is not None:  # such as 10:00 05:30, an offset without its sign
        raise DateRefusedError(
            f"{text!r} has two times of day; write one, with its offset if need be, like "
            "2025-09-08T15:30+02:00",
            code="invalid_date",
        )
    return found["date"], _time_of(found, text)


def _tells_time(found: re.Match[str]) -> bool:
    """A number alone is no time: it can be a day or a year."""
    return found["minute"] is not None or found["half"] is not None


def _time_of(found: re.Match[str], text: str) -> time:
    hour, half = int(found["hour"]), found["half"]
    if half is not None:
        hour = hour % _NOON + (_NOON if half in "pP" else 0) if 1 <= hour <= _NOON else -1
    try:
        return time(hour, int(found["minute"] or 0), int(found["second"] or 0))
    except ValueError:
        raise DateRefusedError(
            f"{text!r} has no time of day that exists; write it like 2025-09-08T15:30",
            code="invalid_date",
        ) from None


def instant_of(local: datetime, zone: ZoneInfo) -> datetime:
    """Return the instant at which clocks in ``zone`` show a local time.

    Raises:
        DateRefusedError: they never show it, or twice; both readings are named.
    """
    before, after = (local.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
    if before.utcoffset() == after.utcoffset():
        return before
    readings = sorted(moment.astimezone(UTC) for moment in (before, after))
    written = " or ".join(moment.astimezone(zone).isoformat() for moment in readings)
    shown = f"{local.isoformat(sep=' ', timespec='minutes')} in {zone.key}"
    if readings[0].astimezone(zone).replace(tzinfo=None, fold=0) == local:
        raise DateRefusedError(
            f"{shown} comes twice, because clocks are set back; write it as {written}",
            code="ambiguous_date",
        )
    raise DateRefusedError(
        f"{shown} does not exist, because clocks are put forward; write {written}",
        code="invalid_date",
    )


def time_in_words(moment: datetime) -> str:
    """Return ``15:00``, and the seconds if there are any."""
    return moment.time().isoformat(timespec="auto" if moment.second else "minutes")


def moment_in_words(moment: datetime, zone: ZoneInfo) -> str:
    """Return ``Monday, March 3, 2025, 23:00 (Asia/Tokyo, UTC+09:00)``."""
    offset = moment.isoformat(timespec="seconds")[19:]
    named = zone.key if zone.key == "UTC" else f"{zone.key}, UTC{offset}"
    return f"{in_words(moment)}, {time_in_words(moment)} ({named})"
