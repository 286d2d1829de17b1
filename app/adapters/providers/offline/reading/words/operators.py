"""The words and signs that join numbers, and what each of them builds."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from app.adapters.providers.offline.reading.words import formula
from app.adapters.providers.offline.reading.words.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.words.formula import (
    PERCENT,
    PLAIN,
    Formula,
    Listing,
    MixedQuantitiesError,
)
from app.adapters.providers.offline.reading.words.numerals import ordinal


@dataclass(frozen=True, slots=True)
class Operator:
    """Something that stands between two operands."""

    build: Callable[[Formula, Formula], Formula]
    after: frozenset[Listing] = frozenset()
    """The open lists that it may follow, because both ways to read it give the same."""
    swaps: bool = False
    """True if the second operand is the one that is worked on: ``3 less than 10``."""
    sign: str = ""
    """``+``, ``-`` or ``/``, where that matters."""


Operators = Phrases[Operator]


TWO, THREE = Formula("2"), Formula("3")


def increased(base: Formula, by: Formula) -> Formula:
    """Return ``base`` and a share of itself, or and another number."""
    return formula.scaled(base, "+", by) if _is_share(base, by) else formula.plus(base, by)


def decreased(base: Formula, by: Formula) -> Formula:
    """Return ``base`` without a share of itself, or without another number."""
    return formula.scaled(base, "-", by) if _is_share(base, by) else formula.minus(base, by)


def _is_share(base: Formula, by: Formula) -> bool:
    if by.fraction and by.quantity == PLAIN:
        raise MixedQuantitiesError(
            "a fraction more or less can mean a share of the number or the fraction itself; "
            "say it in percent, or say plus or minus"
        )
    return by.quantity == PERCENT and base.quantity != PERCENT


def swapped(build: Callable[[Formula, Formula], Formula]) -> Callable[[Formula, Formula], Formula]:
    """Return the operation that takes its operands the other way round."""
    return lambda first, second: build(second, first)


_AFTER_SUM, _AFTER_PRODUCT = frozenset({Listing.SUM}), frozenset({Listing.PRODUCT})
PLUS = Operator(formula.plus, _AFTER_SUM, sign="+")
MINUS = Operator(formula.minus, _AFTER_SUM, sign="-")
TIMES = Operator(formula.times, _AFTER_PRODUCT)
DIVIDED = Operator(formula.divided, _AFTER_PRODUCT, sign="/")
_WHOLE_DIVIDED = Operator(lambda left, right: formula.divided(left, right, "//"), sign="/")
_REMAINDER = Operator(lambda left, right: formula.divided(left, right, "%"), sign="/")

ADDITIVE: Operators = Phrases(
    {
        "(+|plus)": PLUS,
        "(-|minus|take away|less|subtracted by)": MINUS,
        "(is|are|) added to": Operator(formula.plus, _AFTER_SUM, sign="+"),
        "(is|are|) (subtracted|taken|taken away|deducted) from": Operator(
            swapped(decreased), swaps=True
        ),
        "(is|are|) (increased|raised) by": Operator(increased),
        "(is|are|) (decreased|reduced|diminished|lowered) by": Operator(decreased),
        "more than": Operator(swapped(increased), swaps=True),
        "(less|fewer) than": Operator(swapped(decreased), swaps=True),
        "off (of|)": Operator(swapped(decreased), swaps=True),
    }
)
MULTIPLICATIVE: Operators = Phrases(
    {
        "(*|x|times)": TIMES,
        "times as (large|big|much|many|great|high) as": TIMES,
        "(is|are|) multiplied (by|with)": TIMES,
        "(/|over)": DIVIDED,
        "(is|are|) divided by": DIVIDED,
        "//": _WHOLE_DIVIDED,
        "(%|mod|modulo|modulus)": _REMAINDER,
    }
)
TO_THE_POWER: Phrases[bool] = Phrases(
    {"(is|) raised to (the power of|the power|the|)": True, "to the power (of|)": True}
)
MARKS: Phrases[Callable[[Formula], Formula]] = Phrases(
    {
        "(!|factorial)": lambda of: formula.call("factorial", of),
        "(%|percent|per cent|pct)": formula.percentage,
        "(squared|\u00b2)": lambda of: formula.power(of, TWO),
        "(cubed|\u00b3)": lambda of: formula.power(of, THREE),
    }
)
CONSTANTS: Phrases[Formula] = Phrases({"(pi|\u03c0)": Formula("pi"), "e": Formula("e")})
SURCHARGE: Phrases[bool] = Phrases(
    {"(sales|value added|income|) tax": True, "(vat|gst|tip|gratuity|interest|commission)": True}
)
DISCOUNT: Phrases[bool] = Phrases({"(discount|rebate|reduction)": True})


def opened(result: Formula, last: Formula) -> Formula:
    """Return ``result``, whose last operand leaves a list open, as open too."""
    ends = {Listing.CLOSED: Listing.CLOSED, Listing.WHOLE: Listing.WHOLE}
    return replace(result, listing=ends.get(last.listing, Listing.OTHER))


def nth_root(cursor: Cursor) -> Formula:
    """Read ``the fourth root`` or ``4th root`` as 4."""
    cursor.accept("the")
    degree = ordinal(cursor)
    cursor.expect("root")
    cursor.accept("of")
    return Formula(str(degree))


def nth_power(cursor: Cursor) -> Formula:
    """Read ``to the fifth`` or ``raised to the 5th power`` as 5."""
    cursor.accept("raised")
    cursor.expect("to")
    cursor.expect("the")
    degree = ordinal(cursor)
    cursor.accept("power")
    return Formula(str(degree))
