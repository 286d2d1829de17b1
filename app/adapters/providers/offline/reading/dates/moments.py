"""Reads a date with a time of day: ``3 pm in Berlin on 3 March 2025``, ``2025-03-03 15:00 UTC``.

The date, the time and the zone may stand in any order. A zone is read with it only where another
one can follow; the last one of a question is for the whole of it.
"""

import re
from dataclasses import dataclass, replace
from functools import partial

from app.adapters.providers.offline.reading.dates.clocks import read_clock
from app.adapters.providers.offline.reading.dates.date_terms import DateTerms
from app.adapters.providers.offline.reading.dates.zones import read_in_zone, read_zone
from app.adapters.providers.offline.reading.words.cursor import Cursor
from app.adapters.providers.offline.reading.words.tokens import Kind

_TIMED = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:.*", re.ASCII)
_OFFSET = re.compile(r".*(?:[Zz]|[+-]\d\d:?\d\d)", re.ASCII)


@dataclass(frozen=True, slots=True)
class Moment:
    """What a question says of an instant; any part may be missing."""

    day: str | None = None
    clock: str | None = None
    written: str | None = None
    """Date and time in one, as ISO 8601 writes them."""
    zone: str | None = None

    @property
    def timed(self) -> bool:
        """True if a time of day is known."""
        return self.clock is not None or self.written is not None

    @property
    def dated(self) -> bool:
        """True if the day is known."""
        return self.day is not None or self.written is not None

    @property
    def located(self) -> bool:
        """True if the text itself says how far from UTC it is."""
        return self.written is not None and _OFFSET.fullmatch(self.written[10:]) is not None

    def on(self, day: str | None) -> "Moment":
        """Return it on a day, if it has none of its own."""
        return self if self.dated else replace(self, day=day)

    def reference(self, cursor: Cursor) -> str:
        """Return it as the calendar takes it."""
        if not self.timed:
            raise cursor.misread()
        if self.written is not None:
            return self.written
        if self.day is None:
            raise cursor.ambiguous("it does not say on which day; clocks change during the year")
        return f"{self.day} {self.clock}"


def is_timed(text: str) -> bool:
    """Tell whether a date in digits has a time of day."""
    return _TIMED.fullmatch(text) is not None


def read_moment(dates: DateTerms) -> Moment:
    """Read the parts of a moment; there must be a time of day."""
    cursor, found = dates.cursor, Moment()
    while (more := cursor.attempt(partial(_more, dates, found))) is not None:
        found = more
    if not found.timed:
        raise cursor.misread()
    return found


def _more(dates: DateTerms, known: Moment, cursor: Cursor) -> Moment:
    """Read one part that is not known yet."""
    cursor.accept(",")
    if not known.timed:
        cursor.accept("at")
        if cursor.here.kind is Kind.DATE and is_timed(cursor.here.text):
            if known.dated:
                raise cursor.misread()
            return replace(known, written=cursor.take().text)
        if (clock := cursor.attempt(read_clock)) is not None:
            return replace(known, clock=f"{clock[0]:02}:{clock[1]:02}")
    if known.timed and known.zone is None and not known.located:
        zone = cursor.attempt(read_in_zone) or cursor.attempt(_read_zone_alone)
        if zone is not None:
            return replace(known, zone=zone)
    cursor.accept("on")
    if known.dated or is_timed(cursor.here.text):
        raise cursor.misread()
    return replace(known, day=dates.term().reference(cursor))


def _read_zone_alone(cursor: Cursor) -> str:
    """Read ``UTC`` or ``Berlin time`` after a time."""
    plain = cursor.at("utc", "gmt") or cursor.ahead().text == "/"
    zone = read_zone(cursor)
    if not cursor.accept("time") and not plain:
        raise cursor.misread()
    return zone
