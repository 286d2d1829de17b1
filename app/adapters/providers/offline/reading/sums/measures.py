"""Quantities in a calculation that another tool has to find first.

In ``25% of the number of days between January 1 and April 10, 2024`` the days are the calendar's to
count. Such a quantity stands in the formula as the place of a result, ``${result.1}``.
"""

import re

from app.adapters.providers.offline.reading.dates.date_terms import DateTerms
from app.adapters.providers.offline.reading.dates.distance_questions import read_length, read_span
from app.adapters.providers.offline.reading.sums.prices import PRICE_BEGINNINGS, read_price
from app.adapters.providers.offline.reading.words.action import Action, Reading
from app.adapters.providers.offline.reading.words.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.words.formula import Binding, Formula, Listing

CALCULATOR, CALENDAR, RESPOND = "calculator", "calendar", "respond"

_PLACE = re.compile(r"\$\{result\.(\d+)\}")
_COUNTED: Phrases[bool] = Phrases({"(the|) number of": True, "how many": True, "(all|) the": True})
_BEGINNINGS = _COUNTED.beginnings | PRICE_BEGINNINGS


class Measures:
    """Reads quantities, and remembers how each is found."""

    def __init__(self, dates: DateTerms) -> None:
        self._dates = dates
        self._found: list[Action] = []

    def read(self, cursor: Cursor) -> Formula:
        """Read ``the number of days from A to B``, ``the days of May 2024``, ``the close of …``."""
        if not cursor.at(*_BEGINNINGS):
            raise cursor.misread()
        return cursor.first_of(lambda _: self._span(), lambda _: self._length(), self._price)

    def actions(self, expression: str) -> Reading:
        """Return what finds the quantities in an expression, and then works it out."""
        calculation = Action(CALCULATOR, {"expression": expression})
        used = sorted({int(number) for number in _PLACE.findall(expression)})
        if not used:
            return Reading(actions=(calculation,))
        if len(used) > 1:
            raise self._dates.cursor.ambiguous("it takes too many steps; ask for less at a time")
        placed = Action(CALCULATOR, {"expression": _PLACE.sub("${result.1}", expression)})
        answer = Action(RESPOND, {"answer": "${result.2}"})
        return Reading(actions=(self._found[used[0] - 1], placed, answer))

    def _span(self) -> Formula:
        _COUNTED.expect(self._dates.cursor)
        args = read_span(self._dates)
        return self.place(Action(CALENDAR, args), signed=args["operation"] == "until")

    def _length(self) -> Formula:
        _COUNTED.expect(self._dates.cursor)
        return self.place(Action(CALENDAR, read_length(self._dates)))

    def _price(self, cursor: Cursor) -> Formula:
        return self.place(read_price(self._dates), quantity="dollars")

    def place(self, action: Action, *, signed: bool = False, quantity: str = "") -> Formula:
        """Return the place of what an action will find; ``signed`` if it may be negative."""
        if action not in self._found:
            self._found.append(action)
        place = f"${{result.{self._found.index(action) + 1}}}"
        binding = Binding.SIGN if signed else Binding.ATOM
        return Formula(place, binding, quantity, listing=Listing.WHOLE)


def is_place(text: str) -> bool:
    """Tell whether an expression is one such quantity and nothing else."""
    return _PLACE.fullmatch(text) is not None
