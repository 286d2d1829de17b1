"""Sums of times: ``2 hours 30 minutes times 4``, ``45 minutes plus 1 h 20 min in hours``.

What may be added, multiplied and divided is for the calculator to say, which knows the units.
"""

from dataclasses import dataclass

from app.adapters.providers.offline.reading.dates.date_terms import DateTerms
from app.adapters.providers.offline.reading.sums.measures import CALCULATOR, RESPOND
from app.adapters.providers.offline.reading.words.action import Action, Reading
from app.adapters.providers.offline.reading.words.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.words.formula import PLAIN
from app.adapters.providers.offline.reading.words.frames import read_closing, read_courtesies
from app.adapters.providers.offline.reading.words.numerals import read_number

UNIT_NAMES: Phrases[str] = Phrases(
    {
        "(second|seconds|sec|secs|s)": "seconds",
        "(minute|minutes|min|mins)": "minutes",
        "(hour|hours|hrs|hr|h)": "hours",
        "(day|days)": "days",
        "(week|weeks)": "weeks",
    }
)
_ASKED: Phrases[bool] = Phrases(
    {
        "(what is|what's|what are|how much is|how long is|how long are)": True,
        "(calculate|compute|work out|evaluate|add|add up)": True,
    }
)
_ADDED: Phrases[str] = Phrases({"(+|plus)": "+", "(-|minus)": "-"})
_SCALED: Phrases[str] = Phrases(
    {"(*|x|times)": "*", "(/|divided by)": "/", "multiplied by": "*", "over": "/"}
)
_INTO: Phrases[bool] = Phrases({"(to|into|in|as)": True})
_MAX_DEPTH = 5
SIGNS = ("+", "plus", "-", "minus", "*", "x", "times", "/", "divided", "multiplied", "over")
"""Words and signs of which one is in every sum that is worth reading here."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of the sum in the calculator's notation."""

    text: str
    power: int
    """How often time is a factor of it: 1 for a time, 0 for a number."""


class _Sum:
    """Writes down what is read, and notes what makes it a sum of times."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._depth = 0
        self.times = 0
        self.operators = 0

    def read(self) -> _Part:
        whole = self._product()
        while (sign := _ADDED.read(self._cursor)) is not None:
            self.operators += 1
            part = self._product()
            if part.power != whole.power:
                raise self._cursor.ambiguous("a time and a number cannot be added; name each unit")
            whole = _Part(f"{whole.text} {sign} {part.text}", whole.power)
        return whole

    def _product(self) -> _Part:
        whole = self._operand()
        while (sign := _SCALED.read(self._cursor)) is not None:
            self.operators += 1
            part = self._operand()
            power = whole.power + (part.power if sign == "*" else -part.power)
            whole = _Part(f"{whole.text} {sign} {part.text}", power)
        return whole

    def _operand(self) -> _Part:
        cursor = self._cursor
        if cursor.accept("("):
            self._depth += 1
            if self._depth > _MAX_DEPTH:
                raise cursor.misread()
            inner = self.read()
            cursor.expect(")")
            self._depth -= 1
            return _Part(f"({inner.text})", inner.power)
        number = _number(cursor)
        unit = UNIT_NAMES.read(cursor)
        return _Part(number, 0) if unit is None else _Part(self._time(f"{number} {unit}"), 1)

    def _time(self, text: str) -> str:
        """Read what more belongs to the same time: ``2 hours and 15 minutes``."""
        self.times += 1
        more = self._cursor.attempt(_and_more)
        while more is not None:
            text, more = f"{text} + {more}", self._cursor.attempt(_and_more)
        return f"({text})"


def read_time_sum(dates: DateTerms) -> Reading:
    """Read a sum of times, at the end of which the unit may stand that it is wanted in."""
    cursor = dates.cursor
    read_courtesies(cursor)
    _ASKED.read(cursor)
    written = _Sum(cursor)
    whole = written.read()
    if not (written.times and written.operators and whole.power in (0, 1)):
        raise cursor.misread()
    wanted = cursor.attempt(_wanted) if whole.power else None
    read_closing(cursor)
    calculated = _calculated(whole.text if wanted is None else f"{whole.text} in {wanted}")
    if whole.power == 0 or wanted is not None:
        return Reading(actions=(calculated,))
    told = Action(RESPOND, {"answer": "${result.1} ${result.1.unit}"})
    return Reading(actions=(calculated, told))


def _calculated(expression: str) -> Action:
    return Action(CALCULATOR, {"expression": expression})


def _and_more(cursor: Cursor) -> str:
    cursor.accept(",")
    cursor.accept("and")
    return f"{_number(cursor)} {UNIT_NAMES.expect(cursor)}"


def _number(cursor: Cursor) -> str:
    number = read_number(cursor)
    if number.quantity != PLAIN:
        raise cursor.misread()
    return f"({number.text})"


def _wanted(cursor: Cursor) -> str:
    _INTO.expect(cursor)
    return UNIT_NAMES.expect(cursor)
