"""Whether two answers say the same (spec, section 8).

Numbers are compared exactly, dates by the day they name, and any other text without regard to
case and spacing.
"""

import re
import unicodedata
from datetime import date, tzinfo
from typing import Protocol

from app.nodes.case.numbers import number_in
from app.tools.dates.refusal import DateRefusedError

_TIME_OF_DAY = re.compile(r"\d:\d|\d{4}-?\d\d-?\d\d[T ]\d", re.ASCII)
"""An answer with a time of day says more than its date does."""


class Dates(Protocol):
    """Reads dates as people write them."""

    def read(self, text: str, zone: tzinfo) -> date:
        """Return the date that ``text`` names.

        Raises:
            DateRefusedError: the text is no date, or can be read in two ways.
        """
        ...


class Comparison:
    """Compares answers of one case."""

    def __init__(self, dates: Dates, zone: tzinfo) -> None:
        self._dates = dates
        self._zone = zone

    def same(self, one: str, other: str) -> bool:
        """Tell whether two answers say the same."""
        numbers = number_in(one), number_in(other)
        if numbers[0] is not None and numbers[1] is not None:
            return numbers[0] == numbers[1]
        if _folded(one) == _folded(other):
            return True
        day = self._date_in(one)
        return day is not None and day == self._date_in(other)

    def _date_in(self, text: str) -> date | None:
        if _TIME_OF_DAY.search(text):
            return None
        try:
            return self._dates.read(text, self._zone)
        except DateRefusedError:
            return None


def _folded(text: str) -> str:
    return " ".join(unicodedata.normalize("NFC", text).casefold().split())
