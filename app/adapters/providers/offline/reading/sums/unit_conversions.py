"""Questions that ask for a length, a weight or a volume in another unit: ``2.5 kg in grams``.

Only units that mean one thing are known, with the factors by which they are defined; a gallon or a
ton is one thing here and another there.
"""

from collections.abc import Mapping
from typing import Final

from app.adapters.providers.offline.reading.dates.date_terms import DateTerms
from app.adapters.providers.offline.reading.sums.expressions import Expressions
from app.adapters.providers.offline.reading.sums.problems import solved
from app.adapters.providers.offline.reading.words import formula
from app.adapters.providers.offline.reading.words.action import Reading
from app.adapters.providers.offline.reading.words.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.words.formula import PLAIN, Binding, Formula
from app.adapters.providers.offline.reading.words.frames import read_courtesies
from app.adapters.providers.offline.reading.words.numerals import read_number

_Unit = tuple[str, str]
"""What a unit measures, and how many of the smallest unit it is, in digits."""

_LENGTH, _MASS, _VOLUME, _DEGREES = "length", "mass", "volume", "degrees"
_UNITS: Mapping[str, _Unit] = {
    "(mm|millimeter|millimeters|millimetre|millimetres)": (_LENGTH, "1"),
    "(cm|centimeter|centimeters|centimetre|centimetres)": (_LENGTH, "10"),
    "(m|meter|meters|metre|metres)": (_LENGTH, "1000"),
    "(km|kms|kilometer|kilometers|kilometre|kilometres)": (_LENGTH, "1000000"),
    "(inch|inches)": (_LENGTH, "25.4"),
    "(foot|feet|ft)": (_LENGTH, "304.8"),
    "(yard|yards|yd)": (_LENGTH, "914.4"),
    "(mile|miles)": (_LENGTH, "1609344"),
    "(mg|milligram|milligrams)": (_MASS, "1"),
    "(g|gram|grams|gramme|grammes)": (_MASS, "1000"),
    "(kg|kgs|kilo|kilos|kilogram|kilograms)": (_MASS, "1000000"),
    "(tonne|tonnes|metric ton|metric tons)": (_MASS, "1000000000"),
    "(lb|lbs)": (_MASS, "453592.37"),
    "(ml|milliliter|milliliters|millilitre|millilitres)": (_VOLUME, "1"),
    "(cl|centiliter|centiliters|centilitre|centilitres)": (_VOLUME, "10"),
    "(l|liter|liters|litre|litres)": (_VOLUME, "1000"),
    "(degrees|degree|) (celsius|centigrade)": (_DEGREES, "celsius"),
    "(degrees|degree|) fahrenheit": (_DEGREES, "fahrenheit"),
}
UNIT_NAMES: Final[Phrases[_Unit]] = Phrases(_UNITS)
_HOW_MANY: Phrases[bool] = Phrases({"how many": True, "(what is|what's) the number of": True})
_ARE: Phrases[bool] = Phrases(
    {
        "(are|is) (there|) (in|)": True,
        "(in|make|make up|equal|equals)": True,
        "(are|is) (contained|) in": True,
        "(does|do|will)": True,
    }
)
_WHAT_IS: Phrases[bool] = Phrases(
    {"(what is|what's|what are|how much is|convert|change|turn|express|write)": True}
)
_INTO: Phrases[bool] = Phrases({"(to|into|in|as)": True})


def read_conversion(dates: DateTerms) -> Reading:
    """Read ``how many meters in 3.2 kilometers`` or ``convert 2.5 kg to grams``."""
    cursor, expressions = dates.cursor, Expressions(dates)
    read_courtesies(cursor)
    if _HOW_MANY.read(cursor):
        unit = UNIT_NAMES.expect(cursor)
        _ARE.expect(cursor)
        told = _told(cursor)
        cursor.accept("have", "make", "contain")
    else:
        _WHAT_IS.read(cursor)
        told = _told(cursor)
        _INTO.expect(cursor)
        unit = UNIT_NAMES.expect(cursor)
    if any(of[0] != unit[0] for _, of in told):
        raise cursor.misread()
    return solved(expressions, _converted(told, unit))


def _told(cursor: Cursor) -> list[tuple[Formula, _Unit]]:
    """Read ``2.5 kg`` or ``5 feet 3 inches``, from the larger unit down."""
    found = [_one(cursor)]
    while (more := cursor.attempt(_more)) is not None:
        if more[1][0] != found[-1][1][0] or more[1][0] == _DEGREES:
            raise cursor.misread()
        found.append(more)
    return found


def _more(cursor: Cursor) -> tuple[Formula, _Unit]:
    cursor.accept("and")
    return _one(cursor)


def _one(cursor: Cursor) -> tuple[Formula, _Unit]:
    sign = cursor.accept("-", "minus")
    count = Formula("1") if _is_article(cursor) else read_number(cursor)
    if count.quantity != PLAIN:
        raise cursor.misread()
    count = count if sign is None else formula.negative(count)
    unit = UNIT_NAMES.expect(cursor)
    if sign is not None and unit[0] != _DEGREES:
        raise cursor.misread()
    return count, unit


def _is_article(cursor: Cursor) -> bool:
    """Take the ``a`` of ``a mile``, but not that of ``a hundred miles`` or ``half a mile``."""
    place = cursor.place()
    if cursor.accept("a", "an", "one"):
        known = UNIT_NAMES.read(cursor) is not None
        cursor.back(place + known)
        return known
    return False


def _converted(told: list[tuple[Formula, _Unit]], unit: _Unit) -> Formula:
    if unit[0] == _DEGREES:
        return _degrees(told[0][0], told[0][1][1], unit[1])
    total = _in_unit(*told[0], unit)
    for count, of in told[1:]:
        total = formula.plus(total, _in_unit(count, of, unit))
    return total


def _in_unit(count: Formula, told: _Unit, asked: _Unit) -> Formula:
    if told[1] == asked[1]:
        return count
    small = formula.times(count, Formula(told[1])) if told[1] != "1" else count
    return formula.divided(small, Formula(asked[1])) if asked[1] != "1" else small


def _degrees(count: Formula, told: str, asked: str) -> Formula:
    if told == asked:
        return count
    ratio, offset = Formula("9 / 5", Binding.PRODUCT), Formula("32")
    if asked == "fahrenheit":
        return formula.plus(formula.times(count, ratio), offset)
    return formula.divided(formula.minus(count, offset), ratio)
