"""What was understood of a day."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Any

from app.adapters.providers.offline.reading.words.cursor import Cursor
from app.tools.dates import calculation
from app.tools.dates.calculation import Unit
from app.tools.dates.inputs import RELATIVE_DAYS
from app.tools.dates.refusal import DateRefusedError

_YEAR_LAST = re.compile(r"(\d{1,2})([-/.])(\d{1,2})\2(\d{4})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Day:
    """A day, as the calendar operation that finds it."""

    args: Mapping[str, Any]
    known: date | None
    """The day itself, where it is certain already."""
    literal: bool = False
    """True for a date written in digits alone, which without other words may be a subtraction."""

    @property
    def operation(self) -> str:
        """The name of the operation."""
        return str(self.args["operation"])

    @property
    def is_relative_word(self) -> bool:
        """True for ``today``, ``tomorrow`` and ``yesterday``."""
        return self.operation == "normalise" and self.args["date"] in RELATIVE_DAYS

    def reference(self, cursor: Cursor) -> str:
        """Return the day as another operation takes it."""
        if self.operation == "normalise":
            return str(self.args["date"])
        if self.known is None:
            raise cursor.ambiguous("the date in it has to be written out first, like 2025-09-08")
        return self.known.isoformat()


@dataclass(frozen=True, slots=True)
class Duration:
    """A length of time in one unit; negative for the past."""

    amount: int
    unit: Unit

    def reversed(self) -> "Duration":
        """Return the same length the other way."""
        return Duration(-self.amount, self.unit)


def written(text: str, *, literal: bool = False) -> Day:
    """Return the day of a date in some notation, which the tool will read."""
    return Day({"operation": "normalise", "date": text}, _only_reading(text), literal)


def _only_reading(text: str) -> date | None:
    """Return the day of a date in digits that can be read in one way: ``24.12.2025``."""
    try:
        return date.fromisoformat(text)
    except ValueError:
        found = _YEAR_LAST.fullmatch(text)
    if found is None:
        return None
    first, second, year = (int(part) for part in found.group(1, 3, 4))
    days = {_day_of(year, *pair) for pair in ((first, second), (second, first))} - {None}
    return days.pop() if len(days) == 1 else None


def _day_of(year: int, month: int, day: int) -> date | None:
    try:
        return date(year, month, day)
    except ValueError:
        return None


def on(day: date) -> Day:
    """Return a day that is known."""
    return written(day.isoformat())


def relative(word: str, today: date) -> Day:
    """Return ``today``, ``tomorrow`` or ``yesterday``; the tool knows the zone they are in."""
    distance = timedelta(days=RELATIVE_DAYS[word])
    return Day({"operation": "normalise", "date": word}, today + distance)


def shifted(cursor: Cursor, day: Day, duration: Duration) -> Day:
    """Return the day that lies ``duration`` after ``day``."""
    known = None
    if day.known is not None:
        try:
            known = calculation.shifted(day.known, duration.amount, duration.unit)
        except DateRefusedError:
            known = None  # the tool will say so
    args = {
        "operation": "add" if duration.amount >= 0 else "subtract",
        "date": day.reference(cursor),
        "amount": abs(duration.amount),
        "unit": duration.unit,
    }
    return Day(args, known)
