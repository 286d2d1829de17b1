"""Questions that are one calculation."""

from app.adapters.providers.offline.reading import formula
from app.adapters.providers.offline.reading.action import Action
from app.adapters.providers.offline.reading.commands import read_command, read_steps
from app.adapters.providers.offline.reading.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.expressions import Expressions
from app.adapters.providers.offline.reading.formula import Binding, Formula
from app.adapters.providers.offline.reading.frames import read_asking, read_closing, read_courtesies
from app.adapters.providers.offline.reading.proportions import read_proportion
from app.adapters.providers.offline.reading.rounding import read_presentation
from app.adapters.providers.offline.reading.tokens import Kind

CALCULATOR = "calculator"

_COMPARED: Phrases[str] = Phrases(
    {
        "(which|what) (number|one|value|of these|) is (the|) (larger|bigger|greater|higher|"
        "largest|biggest|greatest|highest|more)": "max",
        "(which|what) (number|one|value|of these|) is (the|) (smaller|lesser|lower|less|"
        "smallest|lowest)": "min",
    }
)


def read_calculation(cursor: Cursor) -> Action:
    """Read a question whose answer is the value of an expression or of some actions."""
    expressions = Expressions(cursor)
    read_asking(cursor)
    first = cursor.place()
    found = cursor.attempt(lambda _: read_command(expressions)) or expressions.expression()
    _refuse_bare_number(cursor, first, found)
    return _finished(expressions, read_steps(expressions, found))


_JOINED: Phrases[str] = Phrases(
    {
        "(added|add|adds|summed) (up|together|) (to|)": "sum",
        "(in total|combined|altogether)": "sum",
        "multiplied (together|)": "product",
    }
)


def read_joined(cursor: Cursor) -> Action:
    """Read ``what do 5 and 6 add up to``, ``2, 3 and 4 multiplied together``."""
    expressions = Expressions(cursor)
    read_asking(cursor)
    items, _ = expressions.items()
    function = _JOINED.expect(cursor)
    plain = function == "product"
    found = expressions.checked(lambda: formula.call(function, *items, plain=plain))
    return _finished(expressions, found)


def read_share(cursor: Cursor) -> Action:
    """Read a question about a percentage that is not known, or of something not known."""
    expressions = Expressions(cursor)
    read_courtesies(cursor)
    place = cursor.place()
    found = cursor.attempt(lambda _: read_proportion(expressions))
    if found is None:
        cursor.back(place)
        read_asking(cursor)
        found = read_proportion(expressions)
    return _finished(expressions, found)


def read_comparison(cursor: Cursor) -> Action:
    """Read ``which is larger, 9.11 or 9.9``."""
    expressions = Expressions(cursor)
    read_courtesies(cursor)
    function = _COMPARED.expect(cursor)
    cursor.accept(",", ":", "-")
    items, _ = expressions.items()
    if any(item.binding < Binding.SIGN for item in items):
        raise cursor.ambiguous("only plain numbers are compared")
    found = expressions.checked(lambda: formula.call(function, *items, plain=False))
    return _finished(expressions, found)


def _finished(expressions: Expressions, found: Formula) -> Action:
    cursor = expressions.cursor
    while (present := cursor.attempt(read_presentation)) is not None:
        found = present(found)
    read_closing(cursor)
    return Action(CALCULATOR, {"expression": found.text})


def _refuse_bare_number(cursor: Cursor, first: int, found: Formula) -> None:
    """Refuse digits alone: there is nothing to work out."""
    alone = cursor.place() == first + 1 and cursor.token(first).kind is Kind.NUMBER
    if alone and found.binding is Binding.ATOM and cursor.here.kind is Kind.END:
        raise cursor.ambiguous("it is one number, and nothing is asked about it")
