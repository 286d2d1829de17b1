"""Word problems about filling things: ``A bus holds 48 passengers. How many buses for 200``.

How the number is made whole depends on what is asked: what is *needed* for all is rounded up, what
is *full* or can be *filled* is rounded down, and what is *left over* is the remainder.
"""

from app.adapters.providers.offline.reading.dates.date_terms import DateTerms
from app.adapters.providers.offline.reading.sums.expressions import Expressions
from app.adapters.providers.offline.reading.sums.problems import read_end, solved
from app.adapters.providers.offline.reading.words import formula
from app.adapters.providers.offline.reading.words.action import Reading
from app.adapters.providers.offline.reading.words.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.words.formula import PLAIN, Formula
from app.adapters.providers.offline.reading.words.frames import read_courtesies
from app.adapters.providers.offline.reading.words.holders import OWNERS, pass_place
from app.adapters.providers.offline.reading.words.numerals import read_number
from app.adapters.providers.offline.reading.words.things import is_same, read_thing

_HOLDS: Phrases[bool] = Phrases(
    {
        "(holds|hold|carries|carry|seats|fits|takes|contains|contain)": True,
        "(can|could) (hold|carry|seat|fit|take|contain)": True,
        "has (room|space|seats) for": True,
    }
)
_PACKED: Phrases[bool] = Phrases(
    {
        "(are|is|were|) (to be|) (packed|put|placed|divided|sorted|bottled|filled|grouped) "
        "(in|into) (boxes|bags|packs|packets|crates|cartons|groups|rows|bottles|trays|jars|teams|"
        "sets|bundles) of": True,
    }
)
_HOW_MANY: Phrases[bool] = Phrases({"how many": True})
_NEEDED: Phrases[bool] = Phrases(
    {
        "(are|is|will be|would be) (needed|required|necessary) (for|to carry|to hold|to transport|"
        "to seat|to move|to take|to pack|to fit)": True,
        "(do|does|will|would|must|should) (i|we|you|they|he|she) (need|have to use|require|order) "
        "(for|to carry|to hold|to transport|to seat|to move|to take|to pack|to fit)": True,
    }
)
_NEEDED_LAST: Phrases[bool] = Phrases(
    {
        "(are|is|will be|would be) (needed|required|necessary)": True,
        "(do|does|will|would) (i|we|you|they|he|she) need": True,
    }
)
_FILLED: Phrases[bool] = Phrases(
    {
        "can (be filled|be packed|be made|be cut) (with|from|out of|completely|)": True,
        "can (i|we|you|they|he|she|one) (fill|pack|make|cut) (with|from|out of|completely|)": True,
    }
)
_OVER: Phrases[bool] = Phrases({"(are|is|will be|remain) (left|left over|)": True})
_ARE: Phrases[bool] = Phrases({"(are there|can be filled|can be packed|will there be)": True})
_IN_SEVERAL: Phrases[bool] = Phrases(
    {"(are there|are|fit|can fit|go) (in|into)": True, "(can|do|could|would|will)": True}
)
_WHOLE = ("full", "complete", "whole")


def read_containers(dates: DateTerms) -> Reading:
    """Read how much goes into one container, and how many of them something takes."""
    cursor, expressions = dates.cursor, Expressions(dates)
    read_courtesies(cursor)
    cursor.accept("if")
    found = cursor.first_of(_holds_first, _packed_first, _filled_from)
    return solved(expressions, found)


def _holds_first(cursor: Cursor) -> Formula:
    """``A bus holds 48 passengers. How many buses are needed for 200 passengers``."""
    cursor.accept(*OWNERS)
    cursor.accept("each", "one", "every")
    container = read_thing(cursor)
    _HOLDS.expect(cursor)
    size, thing = _counted(cursor)
    read_end(cursor)
    _HOW_MANY.expect(cursor)
    asked = read_thing(cursor)
    if is_same(thing, asked):
        return _in_several(cursor, size, container)
    if not is_same(container, asked):
        raise cursor.misread()
    _NEEDED.expect(cursor)
    number = _number_of(cursor, thing)
    return _whole("ceil", formula.divided(number, size))


def _in_several(cursor: Cursor, size: Formula, container: str) -> Formula:
    """``… How many eggs are in 5 boxes``."""
    _IN_SEVERAL.expect(cursor)
    count = _plain(cursor)
    if not is_same(container, read_thing(cursor)):
        raise cursor.misread()
    cursor.accept("hold", "carry", "contain", "seat")
    return formula.times(size, count)


def _packed_first(cursor: Cursor) -> Formula:
    """``365 eggs are packed in boxes of 12. How many full boxes are there``."""
    if cursor.accept("there"):
        cursor.expect("are", "were")
    number, thing = _counted(cursor)
    container = _packed(cursor)
    size = _plain(cursor)
    cursor.accept("each")
    read_end(cursor)
    return _asked(cursor, number, size, thing, container)


def _packed(cursor: Cursor) -> str:
    """Read ``are packed in boxes of`` or ``to be packed in boxes of``; return ``boxes``."""
    if not _PACKED.read(cursor):
        raise cursor.misread()
    return cursor.texts[cursor.place() - 2]


def _asked(cursor: Cursor, number: Formula, size: Formula, thing: str, boxes: str) -> Formula:
    _HOW_MANY.expect(cursor)
    whole = cursor.accept(*_WHOLE) is not None
    if cursor.accept(boxes):
        if whole:
            _ARE.read(cursor)
            return _whole("floor", formula.divided(number, size))
        if _FILLED.read(cursor):
            return _whole("floor", formula.divided(number, size))
        _NEEDED_LAST.expect(cursor)
        return _whole("ceil", formula.divided(number, size))
    if whole or not is_same(thing, read_thing(cursor)):
        raise cursor.misread()
    _OVER.expect(cursor)
    last = cursor.before()
    if last is None or last.text not in {"left", "over", "remain"}:
        raise cursor.misread()
    return formula.divided(number, size, "%")


def _filled_from(cursor: Cursor) -> Formula:
    """``How many 0.75 litre bottles can be filled from 12 litres``."""
    _HOW_MANY.expect(cursor)
    size = _plain(cursor)
    cursor.accept("-")
    unit, *rest = read_thing(cursor).split(" ")
    if not rest:
        raise cursor.misread()
    _FILLED.expect(cursor)
    cursor.accept("a")
    number = _plain(cursor)
    told = read_thing(cursor).split(" ")[0]
    if _unit(unit) != _unit(told):
        raise cursor.misread()
    return _whole("floor", formula.divided(number, size))


def _unit(word: str) -> str:
    return {"litre": "liter", "litres": "liter", "metre": "meter", "metres": "meter"}.get(
        word, word.removesuffix("s")
    )


def _counted(cursor: Cursor) -> tuple[Formula, str]:
    return _plain(cursor), read_thing(cursor)


def _number_of(cursor: Cursor, thing: str) -> Formula:
    number = _plain(cursor)
    if not is_same(thing, read_thing(cursor)):
        raise cursor.misread()
    pass_place(cursor, "to", "from", "in")
    return number


def _plain(cursor: Cursor) -> Formula:
    found = read_number(cursor)
    if found.quantity != PLAIN or found.fraction:
        raise cursor.misread()
    return found


def _whole(function: str, found: Formula) -> Formula:
    return Formula(f"{function}({found.text})")
