"""Questions that are one calculation."""

from app.adapters.providers.offline.reading.dates.date_terms import DateTerms
from app.adapters.providers.offline.reading.sums.commands import read_command, read_steps
from app.adapters.providers.offline.reading.sums.expressions import Expressions
from app.adapters.providers.offline.reading.sums.measures import is_place
from app.adapters.providers.offline.reading.sums.proportions import read_proportion
from app.adapters.providers.offline.reading.words import formula
from app.adapters.providers.offline.reading.words.action import Reading
from app.adapters.providers.offline.reading.words.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.words.formula import Binding, Formula
from app.adapters.providers.offline.reading.words.frames import (
    read_asking,
    read_closing,
    read_courtesies,
)
from app.adapters.providers.offline.reading.words.phrases import read_remainder
from app.adapters.providers.offline.reading.words.rounding import read_presentation
from app.adapters.providers.offline.reading.words.tokens import Kind

_COMPARED: Phrases[str] = Phrases(
    {
        "(which|what) (number|one|value|of these|) is (the|) (larger|bigger|greater|higher|"
        "largest|biggest|greatest|highest|more) (number|one|value|) (of|among|)": "max",
        "(which|what) (number|one|value|of these|) is (the|) (smaller|lesser|lower|less|"
        "smallest|lowest) (number|one|value|) (of|among|)": "min",
    }
)

_OF_THESE: Phrases[bool] = Phrases({"(which|what) (number|one|) (of|among)": True})
_EXTREME: Phrases[str] = Phrases(
    {
        "is (the|) (largest|biggest|greatest|highest|maximum|larger|bigger|greater|higher)": "max",
        "is (the|) (smallest|lowest|least|minimum|smaller|lower)": "min",
    }
)


def read_calculation(dates: DateTerms) -> Reading:
    """Read a question whose answer is the value of an expression or of some actions."""
    cursor, expressions = dates.cursor, Expressions(dates)
    read_asking(cursor)
    first = cursor.place()
    found = cursor.attempt(lambda _: read_command(expressions)) or expressions.expression()
    bare = cursor.place() == first + 1 and cursor.token(first).kind is Kind.NUMBER
    asked = _presented(cursor, read_steps(expressions, found))
    reading = _closed(expressions, asked)
    if bare and asked == found:
        raise cursor.ambiguous("it is one number, and nothing is asked about it")
    if is_place(asked.text):
        raise cursor.misread()  # another tool's question, with nothing to calculate
    return reading


_LEFT_OVER: Phrases[bool] = Phrases(
    {
        "(what|how much) (is|will be|would be) left (over|)": True,
        "(what's|whats) left (over|)": True,
        "(what|how much) (remains|do you have left|do i have left)": True,
    }
)


def read_left_over(dates: DateTerms) -> Reading:
    """Read ``what is left when 3 is taken from 10`` or ``… when 50 is divided by 8``."""
    cursor, expressions = dates.cursor, Expressions(dates)
    read_courtesies(cursor)
    _LEFT_OVER.expect(cursor)
    found = cursor.attempt(lambda _: expressions.checked(lambda: read_remainder(expressions)))
    if found is None:
        cursor.expect("when", "after", "if")
        cursor.accept("you", "i", "we")
        found = cursor.attempt(lambda _: read_command(expressions)) or expressions.expression()
        if found.binding is not Binding.SUM:
            raise cursor.ambiguous("only a difference or a division leaves something")
    return _finished(expressions, found)


_JOINED: Phrases[str] = Phrases(
    {
        "(added|add|adds|summed) (up|together|) (to|)": "sum",
        "(in total|combined|altogether)": "sum",
        "multiplied (together|)": "product",
    }
)
_JOINING_WORDS = ("add", "added", "adds", "summed", "total", "combined", "altogether", "multiplied")


def read_joined(dates: DateTerms) -> Reading:
    """Read ``what do 5 and 6 add up to``, ``2, 3 and 4 multiplied together``."""
    cursor, expressions = dates.cursor, Expressions(dates)
    if not cursor.mentions(*_JOINING_WORDS):
        raise cursor.misread()
    read_asking(cursor)
    items, _ = expressions.items()
    function = _JOINED.expect(cursor)
    plain = function == "product"
    found = expressions.checked(lambda: formula.call(function, *items, plain=plain))
    return _finished(expressions, found)


_PERCENT_WORDS = ("percent", "percentage", "%", "per")


def _asks_of_what(cursor: Cursor) -> bool:
    """Tell whether the question has ``of what`` or ``of which`` in it."""
    pairs = zip(cursor.texts, cursor.texts[1:], strict=False)
    return any(first == "of" and second in {"what", "which"} for first, second in pairs)


def read_share(dates: DateTerms) -> Reading:
    """Read a question about a percentage that is not known, or of something not known."""
    cursor, expressions = dates.cursor, Expressions(dates)
    if not (cursor.mentions(*_PERCENT_WORDS) or _asks_of_what(cursor)):
        raise cursor.misread()
    read_courtesies(cursor)
    place = cursor.place()
    found = cursor.attempt(lambda _: read_proportion(expressions))
    if found is None:
        cursor.back(place)
        read_asking(cursor)
        found = read_proportion(expressions)
    return _finished(expressions, found)


def read_comparison(dates: DateTerms) -> Reading:
    """Read ``which is larger, 9.11 or 9.9``, ``which of 12, 7 and 30 is the largest``."""
    cursor, expressions = dates.cursor, Expressions(dates)
    read_courtesies(cursor)
    listed_first = _OF_THESE.read(cursor) is not None
    function = None if listed_first else _COMPARED.expect(cursor)
    cursor.accept(",", ":", "-")
    items, _ = expressions.items()
    function = function or _EXTREME.expect(cursor)
    if any(item.binding < Binding.SIGN for item in items):
        raise cursor.ambiguous("only plain numbers are compared")
    found = expressions.checked(lambda: formula.call(function, *items, plain=False))
    return _finished(expressions, found)


def _finished(expressions: Expressions, found: Formula) -> Reading:
    return _closed(expressions, _presented(expressions.cursor, found))


def _presented(cursor: Cursor, found: Formula) -> Formula:
    """Read how the result is wanted, if the question says so."""
    while (present := cursor.attempt(read_presentation)) is not None:
        found = present(found)
    return found


def _closed(expressions: Expressions, found: Formula) -> Reading:
    read_closing(expressions.cursor)
    return expressions.measures.actions(found.text)
