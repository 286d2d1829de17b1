"""The functions and constants that an expression may use."""

import math
from collections.abc import Callable, Mapping
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from functools import reduce

from caseworker_cases.tools.arithmetic.real import (
    CONTEXT,
    MAX_DIGITS,
    Real,
    add,
    calculation_too_large,
    divide,
    fitted,
    floor,
    guard,
    is_whole,
    multiply,
    negate,
    power,
    remainder,
    root,
    undefined,
)

MAX_FACTORIAL = 449
"""Largest number whose factorial has at most ``MAX_DIGITS`` digits."""
MAX_DECIMALS = 100
_MAX_WHOLE_LOGARITHM = 10_000

CONSTANTS: Mapping[str, Decimal] = {
    "pi": Decimal("3.1415926535897932384626433832795028841971693993751"),
    "e": Decimal("2.7182818284590452353602874713526624977572470937000"),
}


def _round(value: Real, places: Real = Fraction(0)) -> Real:
    """Round halves away from zero; a negative ``places`` rounds to tens, hundreds and so on."""
    if not is_whole(places) or not -MAX_DECIMALS <= places <= MAX_DECIMALS:
        raise undefined(f"round takes a whole number of places up to {MAX_DECIMALS}")
    if isinstance(value, Decimal):
        wide = CONTEXT.copy()
        wide.prec = 2 * MAX_DIGITS
        return value.quantize(Decimal(1).scaleb(-int(places)), ROUND_HALF_UP, wide)
    shift = Fraction(10) ** int(places)
    rounded = math.floor(abs(value) * shift + Fraction(1, 2)) / shift
    return fitted(rounded if value >= 0 else -rounded)


def _factorial(value: Real) -> Real:
    if not is_whole(value) or value < 0:
        raise undefined("factorial takes a whole number that is not negative")
    if value > MAX_FACTORIAL:
        raise calculation_too_large(f"factorial takes at most {MAX_FACTORIAL}")
    return Fraction(math.factorial(int(value)))


def _exponential(value: Real) -> Real:
    if value == 0:
        return Fraction(1)
    return guard(CONTEXT.exp, value)


def _natural_logarithm(value: Real) -> Real:
    _refuse_logarithm(value)
    if value == 1:
        return Fraction(0)
    return guard(CONTEXT.ln, value)


def _decimal_logarithm(value: Real) -> Real:
    _refuse_logarithm(value)
    exact = _whole_logarithm(value, Fraction(10))
    if exact is not None:
        return exact
    return guard(CONTEXT.log10, value)


def _logarithm(value: Real, base: Real) -> Real:
    _refuse_logarithm(value)
    if base <= 0 or base == 1:
        raise undefined("the base of a logarithm must be positive and not 1")
    exact = _whole_logarithm(value, base)
    if exact is not None:
        return exact
    return divide(_natural_logarithm(value), _natural_logarithm(base))


def _mean(*values: Real) -> Real:
    return divide(reduce(add, values), Fraction(len(values)))


def _median(*values: Real) -> Real:
    ordered = sorted(values, key=lambda value: Fraction(value))
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else _mean(*ordered[middle - 1 : middle + 1])


def _least_common_multiple(first: Real, second: Real, *more: Real) -> Real:
    result = 1
    for number in _integers("lcm", (first, second, *more)):
        result = math.lcm(result, number)
        if result >= 10**MAX_DIGITS:
            raise calculation_too_large(f"the result has more than {MAX_DIGITS} digits")
    return Fraction(result)


def _whole_logarithm(value: Real, base: Real) -> Fraction | None:
    """Return the logarithm if it is an integer, else None."""
    if value == 1:
        return Fraction(0)
    if not isinstance(value, Fraction) or not isinstance(base, Fraction):
        return None
    scale = math.log(base.numerator) - math.log(base.denominator)
    if scale == 0:
        return None
    ratio = (math.log(value.numerator) - math.log(value.denominator)) / scale
    if abs(ratio) > _MAX_WHOLE_LOGARITHM:
        return None
    exponent = Fraction(round(ratio))
    return exponent if power(base, exponent) == value else None


def _greatest_common_divisor(first: Real, second: Real, *more: Real) -> Real:
    return Fraction(math.gcd(*_integers("gcd", (first, second, *more))))


def _refuse_logarithm(value: Real) -> None:
    if value <= 0:
        raise undefined("only a positive number has a logarithm")


def _integers(name: str, values: tuple[Real, ...]) -> list[int]:
    if not all(isinstance(value, Fraction) and is_whole(value) for value in values):
        raise undefined(f"{name} takes whole numbers")
    return [int(value) for value in values]


FUNCTIONS: Mapping[str, Callable[..., Real]] = {
    "abs": lambda value: negate(value) if value < 0 else value,
    "cbrt": lambda value: root(value, Fraction(3)),
    "ceil": lambda value: negate(floor(negate(value))),
    "exp": _exponential,
    "factorial": _factorial,
    "floor": lambda value: floor(value),
    "gcd": _greatest_common_divisor,
    "lcm": _least_common_multiple,
    "ln": _natural_logarithm,
    "log": _logarithm,
    "log10": _decimal_logarithm,
    "max": lambda *values: max(values, key=Fraction),
    "mean": _mean,
    "median": _median,
    "min": lambda *values: min(values, key=Fraction),
    "mod": remainder,
    "product": lambda *values: reduce(multiply, values),
    "root": root,
    "round": _round,
    "sqrt": lambda value: root(value, Fraction(2)),
    "sum": lambda *values: reduce(add, values),
}
"""All functions by name."""
