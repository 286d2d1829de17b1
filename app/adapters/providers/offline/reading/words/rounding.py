"""How a result is to be rounded or shown."""

from collections.abc import Callable, Mapping
from typing import Protocol

from app.adapters.providers.offline.reading.words import formula
from app.adapters.providers.offline.reading.words.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.words.formula import Formula
from app.adapters.providers.offline.reading.words.numerals import read_number

Rounding = Callable[[Formula], Formula]

MAX_PLACES = 30
MAX_DECIMALS = 10
"""Of the figures that are worked out from prices."""

_NEAREST: Mapping[str, int] = {
    "integer": 0,
    "whole number": 0,
    "whole": 0,
    "int": 0,
    "unit": 0,
    "one": 0,
    "ten": -1,
    "tens": -1,
    "hundred": -2,
    "hundreds": -2,
    "thousand": -3,
    "thousands": -3,
    "million": -6,
    "tenth": 1,
    "tenths": 1,
    "hundredth": 2,
    "hundredths": 2,
    "thousandth": 3,
    "cent": 2,
    "penny": 2,
    "dollar": 0,
    "euro": 0,
}
_NEAREST_PLACES: Phrases[int] = Phrases(
    {f"(the|) nearest {k}": v for k, v in _NEAREST.items()} | {"the (cent|penny)": 2}
)
_PLACES: Phrases[bool] = Phrases(
    {
        "(decimal|decimals|dp)": True,
        "(decimal|) (place|places|digit|digits)": True,
        "(digit|digits|place|places) after the decimal point": True,
        "d p": True,
    }
)
_ROUND_TO: Phrases[bool] = Phrases(
    {
        "(rounded|round|rounding) (it|them|the result|the answer|your answer|the results|off|) "
        "(off|) (to|at)": True,
        "(give|state|report|show) (it|the result|the answer|your answer) (to|with)": True,
        "(answer|accurate|correct|precise|exact) (to|with)": True,
        "(to|with|at)": True,
    }
)
_WHOLE: Phrases[bool] = Phrases({"(an|the|a|) (integer|whole number)": True})
_ROUNDED: Phrases[bool] = Phrases({"(rounded|rounding|round) (off|)": True})
_AS_PERCENT: Phrases[bool] = Phrases(
    {
        "(as|in|to|into) (a|) (percent|percentage|percents|percentages)": True,
        "(expressed|written) (as|in) (a|) (percent|percentage)": True,
    }
)
_AS_DECIMAL: Phrases[bool] = Phrases(
    {"(as|in|to|into) (a|) (decimal|decimals|decimal number|number)": True}
)
ROUNDING_BEGINNINGS = _ROUND_TO.beginnings | _NEAREST_PLACES.beginnings


class Items(Protocol):
    """What the rules below need of the grammar of expressions."""

    cursor: Cursor

    def expression(self) -> Formula:
        """Read an expression."""
        ...


def read_rounding(cursor: Cursor) -> Rounding:
    """Read ``to 2 decimal places``, ``to the nearest ten``, or nothing: to a whole number."""
    if not cursor.accept("to"):
        return _to_places(0)
    places = _NEAREST_PLACES.read(cursor)
    if places is not None:
        return _to_places(places)
    if _WHOLE.read(cursor):
        return _to_places(0)
    if cursor.accept("the"):
        cursor.expect("nearest")
        step = read_number(cursor)
        return lambda found: formula.times(_called("round", formula.divided(found, step)), step)
    digits = read_number(cursor).text
    if not digits.isdigit() or int(digits) > MAX_PLACES:
        raise cursor.misread()
    _PLACES.expect(cursor)
    return _to_places(int(digits))


def read_decimals(cursor: Cursor) -> int:
    """Read ``rounded to 2 decimals`` or ``to the nearest cent`` as the number of decimals."""
    _ROUND_TO.read(cursor)
    nearest = _NEAREST_PLACES.read(cursor)
    if nearest is None:
        digits = read_number(cursor).text
        _PLACES.expect(cursor)
        nearest = int(digits) if digits.isdigit() else -1
    if not 0 <= nearest <= MAX_DECIMALS:
        raise cursor.misread()
    return nearest


def read_round_command(items: Items) -> Formula:
    """Read what follows ``round``: ``3.14159 to 2 decimals``, ``up 2.3``."""
    cursor = items.cursor
    direction = cursor.accept("up", "down", "off")
    found = items.expression()
    direction = direction or cursor.accept("up", "down", "off")
    if direction in {None, "off"}:
        return read_rounding(cursor)(found)
    if cursor.accept("to") and _NEAREST_PLACES.read(cursor) != 0:
        raise cursor.ambiguous("rounding up or down is known for whole numbers only")
    return _called("ceil" if direction == "up" else "floor", found)


def read_presentation(cursor: Cursor) -> Rounding:
    """Read how the result is wanted: ``, rounded to 2 decimals``, ``as a percentage``."""
    place = cursor.place()
    cursor.accept(",")
    if _AS_PERCENT.read(cursor):
        return lambda found: formula.times(formula.plain(found), Formula("100"))
    if _AS_DECIMAL.read(cursor):
        return formula.plain
    if _ROUNDED.read(cursor) or cursor.at("to"):
        return read_rounding(cursor)
    cursor.back(place)
    raise cursor.misread()


def _to_places(places: int) -> Rounding:
    return lambda found: _called("round", found, str(places)) if places else _called("round", found)


def _called(name: str, found: Formula, *more: str) -> Formula:
    return Formula(f"{name}({', '.join([found.text, *more])})", quantity=found.quantity)
