"""Real numbers that stay exact as long as possible.

A value is a ``Fraction`` while it is exact: sums, products, quotients, whole powers and perfect
roots of exact numbers. It becomes, and stays, a ``Decimal`` of ``WORKING_DIGITS`` digits in two
cases: it is irrational (``sqrt(2)``), or its fraction needs more than ``MAX_DIGITS`` digits. The
type therefore shows whether a result is exact. Every value stays below ``10 ** MAX_DIGITS``, which
limits the time of each operation. Undefined or too large results raise ToolRefusedError.
"""

import decimal
import math
from collections.abc import Callable
from contextlib import suppress
from decimal import Decimal, DivisionByZero, InvalidOperation, Overflow, Underflow
from fractions import Fraction

from caseworker.tools.ports import ToolRefusedError

Real = Fraction | Decimal
"""A real number: an exact ``Fraction``, or a ``Decimal`` rounded to ``WORKING_DIGITS`` digits."""

MAX_DIGITS = 1000
"""Maximum number of digits of an integer, and of the numerator and denominator of a fraction."""
WORKING_DIGITS = 50
"""Number of significant digits of an inexact value, more than a result shows."""
SHOWN_DIGITS = 34
"""Number of significant digits of a rounded result (as in IEEE decimal128)."""
MAX_EXACT_DECIMALS = 100
"""Maximum number of decimal places for writing a finite decimal in full."""

_LIMIT = 10**MAX_DIGITS
_MAX_BITS = _LIMIT.bit_length()
_MAX_ROOT = 100
_TRUSTED_DIGITS = 40
"""A difference of rounded values that is this many digits smaller than its operands is noise."""

CONTEXT = decimal.Context(
    prec=WORKING_DIGITS,
    rounding=decimal.ROUND_HALF_EVEN,
    Emin=-MAX_DIGITS,
    Emax=MAX_DIGITS - 1,
    traps=[DivisionByZero, InvalidOperation, Overflow, Underflow],
)
"""Decimal context for inexact operations; overflow and underflow raise errors."""


def undefined(message: str) -> ToolRefusedError:
    """Return the error for an operation without a real result."""
    return ToolRefusedError(message, code="undefined")


def calculation_too_large(message: str) -> ToolRefusedError:
    """Return the error for a calculation that exceeds a limit."""
    return ToolRefusedError(message, code="too_large")


def add(left: Real, right: Real) -> Real:
    """Return ``left + right``."""
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return fitted(left + right)
    first, second = rounded(left), rounded(right)
    total = guard(CONTEXT.add, first, second)
    largest = max(first.adjusted(), second.adjusted())
    return total if total.adjusted() > largest - _TRUSTED_DIGITS else Decimal(0)


def subtract(left: Real, right: Real) -> Real:
    """Return ``left - right``."""
    return add(left, negate(right))


def multiply(left: Real, right: Real) -> Real:
    """Return ``left * right``."""
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return fitted(left * right)
    return guard(CONTEXT.multiply, left, right)


def divide(left: Real, right: Real) -> Real:
    """Return ``left / right``.

    Raises:
        ToolRefusedError: ``right`` is zero.
    """
    if right == 0:
        raise ToolRefusedError("division by zero has no result", code="division_by_zero")
    if isinstance(left, Fraction) and isinstance(right, Fraction):
        return fitted(left / right)
    return guard(CONTEXT.divide, left, right)


def divide_whole(left: Real, right: Real) -> Real:
    """Return ``left / right``, rounded down to an integer."""
    return floor(divide(left, right))


def remainder(left: Real, right: Real) -> Real:
    """Return ``left - right * floor(left / right)``, which has the sign of ``right``."""
    return subtract(left, multiply(right, divide_whole(left, right)))


def power(base: Real, exponent: Real) -> Real:
    """Return ``base ** exponent``; 0 ** 0 is 1.

    Raises:
        ToolRefusedError: the result is undefined, or not a real number.
    """
    if base == 0 and exponent < 0:
        raise ToolRefusedError("zero cannot be raised to a negative power", code="division_by_zero")
    exact = _exact_power(base, exponent)
    if exact is not None:
        return fitted(exact)
    if base < 0 and not is_whole(exponent):
        raise undefined(
            "a negative number to a fractional power is not a real number; "
            "use root(x, n) for an odd root"
        )
    return guard(CONTEXT.power, base, exponent)


def root(value: Real, degree: Real) -> Real:
    """Return the real root with an integer degree: ``root(-8, 3)`` is -2."""
    if isinstance(degree, Decimal) or not is_whole(degree) or not 2 <= degree <= _MAX_ROOT:
        raise undefined(f"the degree of a root must be a whole number from 2 to {_MAX_ROOT}")
    if value < 0:
        if degree % 2 == 0:
            raise undefined("an even root of a negative number is not a real number")
        return negate(root(negate(value), degree))
    return power(value, 1 / degree)


def floor(value: Real) -> Real:
    """Return the largest integer not above ``value``; exact if ``value`` is exact."""
    if isinstance(value, Fraction):
        return Fraction(math.floor(value))
    return value.to_integral_value(decimal.ROUND_FLOOR)


def fitted(value: Fraction) -> Real:
    """Return the value unchanged if it fits into ``MAX_DIGITS``, else as a rounded Decimal."""
    if abs(value.numerator) < _LIMIT and value.denominator < _LIMIT:
        return value
    return rounded(value)


def rounded(value: Real) -> Decimal:
    """Return ``value`` with ``WORKING_DIGITS`` significant digits."""
    if isinstance(value, Decimal):
        return value
    return guard(CONTEXT.divide, Decimal(value.numerator), Decimal(value.denominator))


def guard(operation: Callable[..., Decimal], *operands: Real) -> Decimal:
    """Apply ``operation`` to the rounded operands; convert decimal signals to errors."""
    try:
        return operation(*map(rounded, operands))
    except Overflow:
        raise calculation_too_large(f"the result has more than {MAX_DIGITS} digits") from None
    except Underflow:
        raise calculation_too_large(f"the result is closer to zero than 1e-{MAX_DIGITS}") from None
    except decimal.DecimalException:
        raise undefined("the operation has no real result") from None


def negate(value: Real) -> Real:
    """Return ``-value`` without rounding to the precision of the current decimal context."""
    return -value if isinstance(value, Fraction) else value.copy_negate()


def is_whole(value: Real) -> bool:
    """Return whether ``value`` is an integer."""
    return value == math.floor(value)


def _exact_power(base: Real, exponent: Real) -> Fraction | None:
    """Return the exact power if it exists and is small enough, else None."""
    if not isinstance(base, Fraction) or not isinstance(exponent, Fraction):
        return None
    root = base if exponent.denominator == 1 else exact_root(base, exponent.denominator)
    if root is None:
        return None
    if abs(root) in (0, 1):
        return Fraction(
            root ** (exponent.numerator % 2 if root < 0 else min(1, exponent.numerator))
        )
    bits = max(root.numerator.bit_length(), root.denominator.bit_length()) - 1
    if bits * abs(exponent.numerator) > _MAX_BITS:
        return None
    return Fraction(root**exponent.numerator)


def exact_root(value: Fraction, degree: int) -> Fraction | None:
    """Return the exact root if ``value`` is a perfect power, otherwise None."""
    if value < 0 or degree > _MAX_ROOT:
        return None
    root = Fraction(_whole_root(value.numerator, degree), _whole_root(value.denominator, degree))
    return root if root**degree == value else None


def _whole_root(value: int, degree: int) -> int:
    """Return the integer part of the root of ``value`` (Newton's method)."""
    if value < 2:
        return value
    guess = 1 << -(-value.bit_length() // degree)
    while True:
        closer = ((degree - 1) * guess + value // guess ** (degree - 1)) // degree
        if closer >= guess:
            return guess
        guess = closer


def decimal_text(value: Real) -> tuple[str, bool]:
    """Return the digits of ``value`` without an exponent, and whether they are exact."""
    context = decimal.Context(prec=SHOWN_DIGITS, rounding=decimal.ROUND_HALF_EVEN)
    if isinstance(value, Decimal):
        return _plain(context.plus(value)), False
    top, bottom = Decimal(value.numerator), Decimal(value.denominator)
    finite = decimal.Context(prec=2 * MAX_DIGITS, traps=[decimal.Inexact])
    with suppress(decimal.Inexact):
        digits = _plain(finite.divide(top, bottom))
        if len(digits.partition(".")[2]) <= MAX_EXACT_DECIMALS:
            return digits, True
    return _plain(context.divide(top, bottom)), False


def _plain(value: Decimal) -> str:
    digits = format(value, "f")
    if "." in digits:
        digits = digits.rstrip("0").rstrip(".")
    return "0" if digits in {"-0", ""} else digits
