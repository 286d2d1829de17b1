"""Reads numbers: in digits, in words, and mixed (``2.5 million``, ``two hundred and five``)."""

from collections.abc import Mapping

from app.adapters.providers.offline.reading.words import formula
from app.adapters.providers.offline.reading.words.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.words.formula import PLAIN, Binding, Formula
from app.adapters.providers.offline.reading.words.tokens import Kind

_SMALL = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"),
    *("ten", "eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen"),
    *("eighteen", "nineteen"),
)
_UNITS: Mapping[str, int] = {word: value for value, word in enumerate(_SMALL)}
_ROUND = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_TENS: Mapping[str, int] = {word: 10 * value for value, word in enumerate(_ROUND, start=2)}
SCALES: Mapping[str, int] = {
    "thousand": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
}
_GROUPS: Mapping[str, int] = {"dozen": 12, "hundred": 100, **SCALES}
_NTH = (
    *("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth", "ninth"),
    *("tenth", "eleventh", "twelfth", "thirteenth", "fourteenth", "fifteenth", "sixteenth"),
    *("seventeenth", "eighteenth", "nineteenth", "twentieth"),
)
ORDINALS: Mapping[str, int] = {word: value for value, word in enumerate(_NTH, start=1)} | {
    "thirtieth": 30,
    "hundredth": 100,
    "thousandth": 1000,
}
_FRACTIONS: Mapping[str, int] = (
    {"half": 2, "halves": 2, "quarter": 4, "quarters": 4}
    | {word: value for word, value in ORDINALS.items() if value > 2}
    | {f"{word}s": value for word, value in ORDINALS.items() if value > 2}
)
_CURRENCY_SIGNS: Mapping[str, str] = {"$": "dollars", "\u20ac": "euros", "\u00a3": "pounds"}
_CURRENCY_WORDS: Phrases[str] = Phrases(
    {
        "(us |)(dollar|dollars)": "dollars",
        "(usd|bucks)": "dollars",
        "(euro|euros|eur)": "euros",
        "(pound|pounds) (sterling|)": "pounds",
        "gbp": "pounds",
    }
)
NUMBER_BEGINNINGS = frozenset({"half", "a", "an", *_UNITS, *_TENS, *_CURRENCY_SIGNS})
"""The words and signs with which a number can begin that does not begin with a digit."""


def read_number(cursor: Cursor) -> Formula:
    """Read a number with its currency, if it has one."""
    if cursor.here.kind is not Kind.NUMBER and not cursor.at(*NUMBER_BEGINNINGS):
        raise cursor.misread()
    sign = cursor.accept(*_CURRENCY_SIGNS)
    number = _amount(cursor)
    if sign is not None:
        return _in_currency(number, _CURRENCY_SIGNS[sign])
    currency = _CURRENCY_WORDS.read(cursor)
    return number if currency is None else _in_currency(number, currency)


def _in_currency(number: Formula, currency: str) -> Formula:
    return Formula(number.text, number.binding, currency, fraction=number.fraction)


def _amount(cursor: Cursor) -> Formula:
    if cursor.here.kind is Kind.NUMBER:
        return _after_digits(cursor, cursor.take().text)
    fraction = cursor.attempt(_fraction_in_words)
    return fraction or _in_words(cursor)


def _after_digits(cursor: Cursor, digits: str) -> Formula:
    """Read what may follow digits: ``k``, ``million``, ``1/2``, ``and a half``, ``thirds``."""
    value = formula.number(digits)
    whole = digits.isdigit()
    if whole and (fraction := cursor.attempt(_glued_fraction)) is not None:
        return _mixed(value, fraction)
    if cursor.at("k") and cursor.here.glued:
        cursor.take()
        return formula.times(value, Formula("1000"))
    if whole and cursor.at("/") and (fraction := cursor.attempt(lambda at: _share(at, value))):
        return fraction
    if whole and (parts := cursor.attempt(lambda at: _fraction_word(at, int(digits)))):
        return _fraction(digits, parts)
    if whole and (part := cursor.attempt(_and_a_fraction)) is not None:
        return _mixed(value, part)
    while (group := cursor.accept(*_GROUPS)) is not None:
        value = formula.times(value, Formula(str(_GROUPS[group])))
    return value


def _glued_fraction(cursor: Cursor) -> Formula:
    """Read the ``1/2`` of ``2 1/2``."""
    top, slash, bottom = cursor.here, cursor.ahead(), cursor.ahead(2)
    digits = top.kind is bottom.kind is Kind.NUMBER and top.text.isdigit() and bottom.text.isdigit()
    if not digits or slash.text != "/" or top.glued or not (slash.glued and bottom.glued):
        raise cursor.misread()
    if not 0 < int(top.text) < int(bottom.text):
        raise cursor.misread()
    for _ in range(3):
        cursor.take()
    return _fraction(top.text, int(bottom.text))


def _share(cursor: Cursor, top: Formula) -> Formula:
    """Read the rest of ``1/4 of``: only before ``of`` does a slash bind so tightly."""
    cursor.expect("/")
    bottom = cursor.number()
    if not bottom.isdigit() or not cursor.at("of"):
        raise cursor.misread()
    return _fraction(top.text, int(bottom))


def _fraction(top: str, bottom: int) -> Formula:
    return Formula(f"{top} / {bottom}", Binding.PRODUCT, fraction=True)


def _mixed(whole: Formula, fraction: Formula) -> Formula:
    return Formula(f"{whole.text} + {fraction.text}", Binding.SUM)


def _fraction_in_words(cursor: Cursor) -> Formula:
    """Read ``half``, ``a third``, ``two thirds``, ``half a million``."""
    if cursor.accept("half"):
        if cursor.at("a") and cursor.ahead().text in _GROUPS:
            cursor.take()
            return formula.times(_fraction("1", 2), Formula(str(_GROUPS[cursor.take().text])))
        return _fraction("1", 2)
    top = 1 if cursor.accept("a", "an") else _below_hundred(cursor)
    cursor.accept("-")
    return _fraction(str(top), _fraction_word(cursor, top))


def _fraction_word(cursor: Cursor, top: int) -> int:
    """Read ``third`` after one, ``thirds`` after any other number."""
    word = cursor.here.text
    if word not in _FRACTIONS or word.endswith("s") == (top == 1):
        raise cursor.misread()
    return _FRACTIONS[cursor.take().text]


def _and_a_fraction(cursor: Cursor) -> Formula:
    """Read the end of ``two and a half``, but nothing of ``two and a half of six``."""
    cursor.expect("and")
    if cursor.at("half"):
        raise cursor.misread()
    part = _fraction_in_words(cursor)
    if cursor.at("of"):
        raise cursor.misread()
    return part


def _in_words(cursor: Cursor) -> Formula:
    """Read a cardinal number in words, with its decimals or its fraction."""
    value, has_and = _cardinal(cursor)
    text = str(value)
    if cursor.at("point") and cursor.ahead().text in _UNITS:
        cursor.take()
        text += "." + _decimals(cursor)
        return _after_digits(cursor, text)
    if (part := cursor.attempt(_and_a_fraction)) is not None:
        return _mixed(Formula(text), part)
    return Formula(text, quantity=PLAIN, splittable=has_and)


def _decimals(cursor: Cursor) -> str:
    digits = ""
    while (word := cursor.here.text) in _UNITS and _UNITS[word] < 10:
        digits += str(_UNITS[cursor.take().text])
    return digits


def _cardinal(cursor: Cursor) -> tuple[int, bool]:
    """Read groups from the largest down: ``two million three hundred thousand and five``."""
    total, ceiling, has_and = 0, 10**15, False
    while True:
        group, inner_and = _below_thousand(cursor)
        has_and |= inner_and
        scale = _GROUPS[cursor.take().text] if cursor.at("dozen", *SCALES) else 1
        if scale >= ceiling:
            raise cursor.misread()
        total, ceiling = total + group * scale, scale
        if scale in {1, 12} or not _continues(cursor):
            return total, has_and
        has_and |= cursor.accept("and") is not None


def _continues(cursor: Cursor) -> bool:
    following = cursor.ahead() if cursor.at("and") else cursor.here
    return following.text in _TENS or _UNITS.get(following.text, 0) > 0


def _below_thousand(cursor: Cursor) -> tuple[int, bool]:
    """Read up to 999, or a lone ``a`` before a larger group; tell whether it has an ``and``."""
    if cursor.at("a", "an") and cursor.ahead().text in _GROUPS:
        cursor.take()
        value = 1
    else:
        value = _below_hundred(cursor)
    if not cursor.accept("hundred"):
        return value, False
    value *= 100
    if cursor.at("and") and _continues(cursor):
        place = cursor.place()
        cursor.take()
        rest = _below_hundred(cursor)
        if cursor.at("hundred", *_FRACTIONS):  # "one hundred and two hundred" are two numbers
            cursor.back(place)
            return value, False
        return value + rest, True
    return value + (_below_hundred(cursor) if _continues(cursor) else 0), False


def _below_hundred(cursor: Cursor) -> int:
    if cursor.here.text in _TENS:
        value = _TENS[cursor.take().text]
        hyphen = cursor.at("-") and cursor.here.glued and cursor.ahead().glued
        unit = _UNITS.get((cursor.ahead() if hyphen else cursor.here).text, 0)
        if not 0 < unit < 10:
            return value
        if hyphen:
            cursor.take()
        cursor.take()
        return value + unit
    return _UNITS[cursor.expect(*_UNITS)]


def ordinal(cursor: Cursor) -> int:
    """Read ``5th`` or ``fifth`` as 5."""
    if cursor.here.kind is Kind.ORDINAL:
        return int(cursor.take().text)
    return ORDINALS[cursor.expect(*ORDINALS)]
