"""What all word problems have: the end of a clause, and the end of the question."""

from app.adapters.providers.offline.reading.sums.expressions import Expressions
from app.adapters.providers.offline.reading.words.action import Reading
from app.adapters.providers.offline.reading.words.cursor import Cursor
from app.adapters.providers.offline.reading.words.formula import Formula
from app.adapters.providers.offline.reading.words.frames import read_closing, read_courtesies
from app.adapters.providers.offline.reading.words.rounding import read_presentation


def read_end(cursor: Cursor) -> None:
    """Read what separates the facts from the question."""
    cursor.expect(",", ".", ";", ":")
    cursor.accept("and", "so", "then", "now")
    read_courtesies(cursor)


def solved(expressions: Expressions, found: Formula) -> Reading:
    """Read the rest of the question, and return the calculation."""
    cursor = expressions.cursor
    while (present := cursor.attempt(read_presentation)) is not None:
        found = present(found)
    read_closing(cursor)
    return expressions.measures.actions(found.text)
