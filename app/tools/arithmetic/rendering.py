"""Writes a number as plain decimal digits."""

import decimal
from decimal import Decimal

from app.tools.arithmetic.real import MAX_DIGITS, Real

SHOWN_DIGITS = 34
"""Significant digits of a value that is rounded (those of IEEE decimal128)."""
MAX_EXACT_DECIMALS = 100
"""Decimal places up to which a value that has an end is written out in full."""


def decimal_text(value: Real) -> tuple[str, bool]:
    """Return the digits of ``value`` and whether they are all of them."""
    shown = decimal.Context(prec=SHOWN_DIGITS, rounding=decimal.ROUND_HALF_EVEN)
    if isinstance(value, Decimal):
        return _plain(shown.plus(value)), False
    places = _decimal_places(value.denominator)
    if places is None:
        return _plain(shown.divide(Decimal(value.numerator), Decimal(value.denominator))), False
    scaled = Decimal(value.numerator * 10**places // value.denominator)
    return _plain(scaled.scaleb(-places, decimal.Context(prec=2 * MAX_DIGITS))), True


def _decimal_places(denominator: int) -> int | None:
    """Return how many decimal places the fraction has; None if there is no end or it is far off."""
    twos = (denominator & -denominator).bit_length() - 1
    rest, fives = denominator >> twos, 0
    while rest % 5 == 0:
        rest, fives = rest // 5, fives + 1
    places = max(twos, fives)
    return places if rest == 1 and places <= MAX_EXACT_DECIMALS else None


def _plain(value: Decimal) -> str:
    digits = format(value, "f")
    if "." in digits:
        digits = digits.rstrip("0").rstrip(".")
    return "0" if digits in {"-0", ""} else digits
