"""The functions and constants that an expression may use."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from fractions import Fraction
from functools import reduce

from caseworker.tools.ports import ToolRefusedError
from caseworker_cases.tools.arithmetic.real import (
    MAX_DIGITS,
    Real,
    RealArithmetic,
    is_whole,
    negate,
    too_large,
    undefined,
)

MAX_FACTORIAL = 449
"""Largest number whose factorial has at most ``MAX_DIGITS`` digits."""
MAX_DECIMALS = 100
MANY = 100
"""Maximum number of arguments for a function with any number of arguments."""
_MAX_WHOLE_LOGARITHM = 10_000

CONSTANTS: Mapping[str, Decimal] = {
    "pi": Decimal("3.1415926535897932384626433832795028841971693993751"),
    "e": Decimal("2.7182818284590452353602874713526624977572470937000"),
}


@dataclass(frozen=True, slots=True)
class Function:
    """A function in expressions, with the number of arguments that it accepts."""

    name: str
    fewest: int
    most: int
    compute: Callable[..., Real]

    def __call__(self, *arguments: Real) -> Real:
        """Check the number of arguments and apply the function."""
        if not self.fewest <= len(arguments) <= self.most:
            takes = str(self.fewest) if self.fewest == self.most else f"{self.fewest}-{self.most}"
            raise ToolRefusedError(
                f"{self.name} takes {takes} argument(s), not {len(arguments)}",
                code="invalid_expression",
            )
        return self.compute(*arguments)


def function_table(arithmetic: RealArithmetic) -> dict[str, Function]:
    """Return all functions by name; they compute with ``arithmetic``."""
    library = _Library(arithmetic)
    table = (
        Function("abs", 1, 1, lambda value: negate(value) if value < 0 else value),
        Function("cbrt", 1, 1, lambda value: arithmetic.root(value, Fraction(3))),
        Function("ceil", 1, 1, lambda value: negate(arithmetic.floor(negate(value)))),
        Function("exp", 1, 1, library.exponential),
        Function("factorial", 1, 1, library.factorial),
        Function("floor", 1, 1, arithmetic.floor),
        Function("gcd", 2, MANY, lambda *values: Fraction(math.gcd(*_whole("gcd", values)))),
        Function("lcm", 2, MANY, library.least_common_multiple),
        Function("ln", 1, 1, library.natural_logarithm),
        Function("log", 2, 2, library.logarithm),
        Function("log10", 1, 1, library.decimal_logarithm),
        Function("max", 1, MANY, lambda *values: max(values, key=Fraction)),
        Function("mean", 1, MANY, library.mean),
        Function("median", 1, MANY, library.median),
        Function("min", 1, MANY, lambda *values: min(values, key=Fraction)),
        Function("mod", 2, 2, arithmetic.remainder),
        Function("product", 1, MANY, lambda *values: reduce(arithmetic.multiply, values)),
        Function("root", 2, 2, arithmetic.root),
        Function("round", 1, 2, library.round),
        Function("sqrt", 1, 1, lambda value: arithmetic.root(value, Fraction(2))),
        Function("sum", 1, MANY, lambda *values: reduce(arithmetic.add, values)),
    )
    return {function.name: function for function in table}


class _Library:
    """The functions that take more than one operation."""

    def __init__(self, arithmetic: RealArithmetic) -> None:
        self._arithmetic = arithmetic

    def round(self, value: Real, places: Real = Fraction(0)) -> Real:
        """Round halves away from zero; a negative ``places`` rounds to tens, hundreds and so on."""
        if not is_whole(places) or not -MAX_DECIMALS <= places <= MAX_DECIMALS:
            raise undefined(f"round takes a whole number of places up to {MAX_DECIMALS}")
        if isinstance(value, Decimal):
            wide = self._arithmetic.context.copy()
            wide.prec = 2 * MAX_DIGITS
            return value.quantize(Decimal(1).scaleb(-int(places)), ROUND_HALF_UP, wide)
        shift = Fraction(10) ** int(places)
        rounded = math.floor(abs(value) * shift + Fraction(1, 2)) / shift
        return self._arithmetic.fitted(rounded if value >= 0 else -rounded)

    def factorial(self, value: Real) -> Real:
        if not is_whole(value) or value < 0:
            raise undefined("factorial takes a whole number that is not negative")
        if value > MAX_FACTORIAL:
            raise too_large(f"factorial takes at most {MAX_FACTORIAL}")
        return Fraction(math.factorial(int(value)))

    def exponential(self, value: Real) -> Real:
        if value == 0:
            return Fraction(1)
        return self._arithmetic.guard(self._arithmetic.context.exp, value)

    def natural_logarithm(self, value: Real) -> Real:
        _refuse_logarithm(value)
        if value == 1:
            return Fraction(0)
        return self._arithmetic.guard(self._arithmetic.context.ln, value)

    def decimal_logarithm(self, value: Real) -> Real:
        _refuse_logarithm(value)
        exact = self._whole_logarithm(value, Fraction(10))
        if exact is not None:
            return exact
        return self._arithmetic.guard(self._arithmetic.context.log10, value)

    def logarithm(self, value: Real, base: Real) -> Real:
        _refuse_logarithm(value)
        if base <= 0 or base == 1:
            raise undefined("the base of a logarithm must be positive and not 1")
        exact = self._whole_logarithm(value, base)
        if exact is not None:
            return exact
        return self._arithmetic.divide(self.natural_logarithm(value), self.natural_logarithm(base))

    def mean(self, *values: Real) -> Real:
        return self._arithmetic.divide(reduce(self._arithmetic.add, values), Fraction(len(values)))

    def median(self, *values: Real) -> Real:
        ordered = sorted(values, key=lambda value: Fraction(value))
        middle = len(ordered) // 2
        return ordered[middle] if len(ordered) % 2 else self.mean(*ordered[middle - 1 : middle + 1])

    def least_common_multiple(self, *values: Real) -> Real:
        result = 1
        for number in _whole("lcm", values):
            result = math.lcm(result, number)
            if result >= 10**MAX_DIGITS:
                raise too_large(f"the result has more than {MAX_DIGITS} digits")
        return Fraction(result)

    def _whole_logarithm(self, value: Real, base: Real) -> Fraction | None:
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
        return exponent if self._arithmetic.power(base, exponent) == value else None


def _refuse_logarithm(value: Real) -> None:
    if value <= 0:
        raise undefined("only a positive number has a logarithm")


def _whole(name: str, values: tuple[Real, ...]) -> list[int]:
    if not all(isinstance(value, Fraction) and is_whole(value) for value in values):
        raise undefined(f"{name} takes whole numbers")
    return [int(value) for value in values]
