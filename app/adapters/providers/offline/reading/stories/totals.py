"""Word problems that count several things together: ``15 cows and 23 sheep. How many in total``.

What is asked for is one of the things that all of them are (``8 red and 5 blue balls``), or the
question says that all are meant: ``in total``, ``altogether``.
"""

from app.adapters.providers.offline.reading.dates.date_terms import DateTerms
from app.adapters.providers.offline.reading.sums.expressions import Expressions
from app.adapters.providers.offline.reading.sums.problems import read_end, solved
from app.adapters.providers.offline.reading.words import formula
from app.adapters.providers.offline.reading.words.action import Reading
from app.adapters.providers.offline.reading.words.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.words.formula import PLAIN, Formula
from app.adapters.providers.offline.reading.words.frames import read_courtesies
from app.adapters.providers.offline.reading.words.holders import pass_place, read_holder
from app.adapters.providers.offline.reading.words.numerals import read_number
from app.adapters.providers.offline.reading.words.things import is_same, read_thing, words

_DOES = words(
    "has have had owns contains holds reads read sold sells baked bakes picked picks collected "
    "planted caught bought buys walked ran saw wrote made makes found scored"
)
_THERE: Phrases[bool] = Phrases({"there (are|were|is|was)": True})
_HOW_MANY: Phrases[bool] = Phrases({"how many": True})
_ARE: Phrases[bool] = Phrases({"(are|were|is|was) (there|)": True, "(do|does|did)": False})
_DID = words(
    "have own contain hold read sell bake pick collect plant catch buy walk run see write make "
    "find score"
)
_ALL: Phrases[bool] = Phrases({"(in total|altogether|in all|all together|together)": True})
_DAYS = words("monday tuesday wednesday thursday friday saturday sunday")


def read_total(dates: DateTerms) -> Reading:
    """Read ``A farmer has 15 cows and 23 sheep. How many animals does he have in total``."""
    cursor, expressions = dates.cursor, Expressions(dates)
    read_courtesies(cursor)
    cursor.accept("if")
    if not _THERE.read(cursor):
        read_holder(cursor, _DOES)
        cursor.expect(*_DOES)
    counts, names = [_number(cursor)], [_name(cursor)]
    while (more := cursor.attempt(_further)) is not None:
        counts.append(more)
        names.append(_name(cursor))
    pass_place(cursor, "in", "on", "at")
    if len(counts) < 2:
        raise cursor.misread()
    read_end(cursor)
    asked = _question(cursor)
    if not _ALL.read(cursor) and not _are_all(names, asked):
        raise cursor.misread()
    return solved(expressions, expressions.checked(lambda: _sum(counts)))


def _are_all(names: list[str], asked: str) -> bool:
    """Tell whether every one is what is asked for: ``8 red balls and 5 blue balls``."""
    return all(is_same(name, asked) for name in names)


def _sum(counts: list[Formula]) -> Formula:
    total = counts[0]
    for count in counts[1:]:
        total = formula.plus(total, count)
    return total


def _further(cursor: Cursor) -> Formula:
    joined = cursor.accept(",") is not None
    joined |= cursor.accept("and") is not None
    if not joined:
        raise cursor.misread()
    return _number(cursor)


def _number(cursor: Cursor) -> Formula:
    found = read_number(cursor)
    if found.quantity != PLAIN or found.fraction:
        raise cursor.misread()
    return found


def _name(cursor: Cursor) -> str:
    """Read ``red balls``, or nothing; pass over ``on Monday``."""
    name = cursor.attempt(read_thing) or ""
    if cursor.at("on") and cursor.ahead().text in _DAYS:
        cursor.take()
        cursor.take()
    return name


def _question(cursor: Cursor) -> str:
    _HOW_MANY.expect(cursor)
    thing = read_thing(cursor)
    if not _ARE.expect(cursor):
        read_holder(cursor, _DID)
        cursor.expect(*_DID)
    pass_place(cursor, "in", "on")
    return thing
