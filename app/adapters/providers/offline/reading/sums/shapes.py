"""Questions about plane shapes and boxes: ``the area of a rectangle of 12 cm by 7.5 cm``."""

from collections.abc import Callable, Mapping

from app.adapters.providers.offline.reading.dates.date_terms import DateTerms
from app.adapters.providers.offline.reading.sums.expressions import Expressions
from app.adapters.providers.offline.reading.sums.problems import read_end, solved
from app.adapters.providers.offline.reading.words import formula
from app.adapters.providers.offline.reading.words.action import Reading
from app.adapters.providers.offline.reading.words.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.words.formula import PLAIN, Formula
from app.adapters.providers.offline.reading.words.frames import read_courtesies
from app.adapters.providers.offline.reading.words.numerals import read_number
from app.adapters.providers.offline.reading.words.operators import THREE, TWO

_SHAPE: Phrases[str] = Phrases(
    {
        "(a|an|the|my|our) (rectangular|) (rectangle|garden|room|field|plot|rug|pool|floor|wall|"
        "table|lawn|carpet|poster|yard|page|screen)": "rectangle",
        "(a|the) square (field|garden|room|plot|)": "square",
        "(a|the) circle": "circle",
        "(a|the) triangle": "triangle",
        "(a|the) cube": "cube",
        "(a|the) (box|cuboid|rectangular box|rectangular prism)": "box",
    }
)
_MEASURE: Phrases[str] = Phrases(
    {
        "area": "area",
        "(perimeter|circumference)": "perimeter",
        "volume": "volume",
    }
)
_WHAT: Phrases[bool] = Phrases(
    {"(what is|what's|find|calculate|compute|determine|how large is|how big is) (the|its|)": True}
)
_ITS: Phrases[bool] = Phrases(
    {"(what is|what's|find|calculate|compute) (its|the|the total)": True, "its": True}
)
_HAVING: Phrases[bool] = Phrases(
    {
        "(with|of|that is|which is|is|measuring|measures|that measures|has|having|whose)": True,
        "(with|has|having) (sides|side lengths|side|edges|edge|dimensions|a side|an edge) (of|)": (
            True
        ),
        "(whose|with) (sides are|sides measure|side is|dimensions are)": True,
    }
)
_PART: Phrases[str] = Phrases(
    {
        "(a|its|the|) (length|long side) (of|is|)": "side",
        "(a|its|the|) (width|breadth|short side|depth) (of|is|)": "side",
        "(a|its|the|) height (of|is|)": "height",
        "(a|its|the|) base (of|is|)": "base",
        "(a|its|the|) radius (of|is|)": "radius",
        "(a|its|the|) diameter (of|is|)": "diameter",
        "(a|its|the|) (side|edge|side length) (of|is|length|)": "side",
    }
)
_UNIT: Phrases[str] = Phrases(
    {
        "(mm|millimeter|millimeters|millimetre|millimetres)": "mm",
        "(cm|centimeter|centimeters|centimetre|centimetres)": "cm",
        "(m|meter|meters|metre|metres)": "m",
        "(km|kilometer|kilometers|kilometre|kilometres)": "km",
        "(inch|inches)": "inch",
        "(foot|feet|ft)": "foot",
        "(yard|yards)": "yard",
        "(mile|miles)": "mile",
        "(unit|units)": "unit",
    }
)
_SAID: Phrases[bool] = Phrases({"(long|wide|high|tall|deep)": True})
_PI, _HALF = Formula("pi"), Formula("1 / 2", formula.Binding.PRODUCT)


def read_shape(dates: DateTerms) -> Reading:
    """Read ``The rectangle is 12 cm by 7.5 cm. What is its area`` or the question alone."""
    cursor, expressions = dates.cursor, Expressions(dates)
    read_courtesies(cursor)
    shape, measure, kind, lengths = cursor.first_of(_asked_first, _told_first)
    build = _FORMULAS.get((shape, measure, kind, len(lengths)))
    if build is None:
        raise cursor.misread()
    return solved(expressions, expressions.checked(lambda: build(*lengths)))


_Found = tuple[str, str, str, list[Formula]]


def _asked_first(cursor: Cursor) -> _Found:
    """``What is the area of a rectangle with sides 8 and 13``."""
    _WHAT.read(cursor)
    cursor.accept("the")
    measure = _MEASURE.expect(cursor)
    cursor.expect("of")
    shape = _SHAPE.expect(cursor)
    return shape, measure, *_lengths(cursor)


def _told_first(cursor: Cursor) -> _Found:
    """``The rectangle is 12 cm by 7.5 cm. What is its area``."""
    shape = _SHAPE.expect(cursor)
    kind, lengths = _lengths(cursor)
    read_end(cursor)
    _ITS.expect(cursor)
    measure = _MEASURE.expect(cursor)
    return shape, measure, kind, lengths


def _lengths(cursor: Cursor) -> tuple[str, list[Formula]]:
    """Read ``with sides 8 and 13``, ``of 12 cm by 7.5 cm``, ``with radius 3``."""
    _HAVING.read(cursor)
    kinds, units = set[str](), set[str]()
    lengths = [_length(cursor, kinds, units)]
    while (more := cursor.attempt(lambda at: _further(at, kinds, units))) is not None:
        lengths.append(more)
    if len(units) > 1:
        raise cursor.misread()
    return _kind(cursor, kinds), lengths


def _kind(cursor: Cursor, kinds: set[str]) -> str:
    """Return what the lengths are; a triangle's base and height are not two of its sides."""
    if kinds == {"base", "height"}:
        return "base and height"
    if kinds <= {"side", "height"}:
        return "side"
    if len(kinds) > 1:
        raise cursor.misread()
    return kinds.pop()


def _further(cursor: Cursor, kinds: set[str], units: set[str]) -> Formula:
    cursor.expect("by", "x", "and", ",", "*")
    cursor.accept("and")
    _HAVING.read(cursor)
    return _length(cursor, kinds, units)


def _length(cursor: Cursor, kinds: set[str], units: set[str]) -> Formula:
    kind = _PART.read(cursor) or "side"
    count = read_number(cursor)
    if count.quantity != PLAIN or count.fraction:
        raise cursor.misread()
    unit = _UNIT.read(cursor)
    _SAID.read(cursor)
    kinds.add(kind)
    if unit is not None:
        units.add(unit)
    return count


def _rectangle_perimeter(length: Formula, width: Formula) -> Formula:
    return formula.times(TWO, formula.plus(length, width))


def _times_all(*lengths: Formula) -> Formula:
    product = lengths[0]
    for length in lengths[1:]:
        product = formula.times(product, length)
    return product


_FORMULAS: Mapping[tuple[str, str, str, int], Callable[..., Formula]] = {
    ("rectangle", "area", "side", 2): _times_all,
    ("rectangle", "perimeter", "side", 2): _rectangle_perimeter,
    ("square", "area", "side", 1): lambda side: formula.power(side, TWO),
    ("square", "perimeter", "side", 1): lambda side: formula.times(Formula("4"), side),
    ("circle", "area", "radius", 1): lambda of: formula.times(_PI, formula.power(of, TWO)),
    ("circle", "perimeter", "radius", 1): lambda of: _times_all(TWO, _PI, of),
    ("circle", "area", "diameter", 1): lambda of: formula.times(
        _PI, formula.power(formula.divided(of, TWO), TWO)
    ),
    ("circle", "perimeter", "diameter", 1): lambda of: formula.times(_PI, of),
    ("triangle", "area", "base and height", 2): lambda base, height: _times_all(
        _HALF, base, height
    ),
    ("triangle", "perimeter", "side", 3): lambda *sides: formula.call("sum", *sides),
    ("cube", "volume", "side", 1): lambda side: formula.power(side, THREE),
    ("box", "volume", "side", 3): _times_all,
}
