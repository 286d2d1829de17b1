"""Numbers stay exact as long as possible, and are marked as rounded afterwards."""

import decimal
from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caseworker.tools.ports import ToolRefusedError
from caseworker_cases.tools.arithmetic import real as arithmetic
from caseworker_cases.tools.arithmetic.functions import CONSTANTS
from caseworker_cases.tools.arithmetic.real import MAX_DIGITS, exact_root, negate

small = st.fractions(min_value=-1000, max_value=1000, max_denominator=1000)


@given(left=small, right=small)
def test_the_four_operations_are_those_of_fractions(left: Fraction, right: Fraction) -> None:
    """Sums, differences, products and quotients are exact."""
    assert arithmetic.add(left, right) == left + right
    assert arithmetic.subtract(left, right) == left - right
    assert arithmetic.multiply(left, right) == left * right
    if right:
        assert arithmetic.divide(left, right) == left / right
        assert arithmetic.divide_whole(left, right) == left // right
        assert arithmetic.remainder(left, right) == left % right


@given(base=st.fractions(min_value=0, max_value=50, max_denominator=50), degree=st.integers(2, 9))
def test_the_root_of_a_power_is_exact(base: Fraction, degree: int) -> None:
    """Newton's method on integers finds the exact root or none."""
    assert exact_root(base**degree, degree) == base


@given(value=st.integers(2, 10**6), degree=st.integers(2, 9))
def test_a_number_between_two_powers_has_no_exact_root(value: int, degree: int) -> None:
    """One more than a power is not a power."""
    assert exact_root(Fraction(value**degree + 1), degree) is None


def test_a_fraction_that_grows_too_long_is_rounded_and_a_number_too_large_refused() -> None:
    """Long denominators may be rounded, large magnitudes may not."""
    long = arithmetic.power(Fraction(4819, 4800), Fraction(360))

    assert isinstance(long, Decimal)
    assert arithmetic.power(Fraction(10), Fraction(MAX_DIGITS - 1)) == 10 ** (MAX_DIGITS - 1)
    with pytest.raises(ToolRefusedError):
        arithmetic.power(Fraction(10), Fraction(MAX_DIGITS))


def test_the_precision_of_the_thread_does_not_matter() -> None:
    """A library that changes the thread's decimal precision has no effect."""
    root = arithmetic.root(Fraction(2), Fraction(2))
    with decimal.localcontext() as ambient:
        ambient.prec = 5
        assert arithmetic.subtract(Fraction(0), root) == negate(root)
        assert len(str(arithmetic.root(Fraction(2), Fraction(2)))) > 40


def test_the_constants_have_all_their_digits() -> None:
    """E is checked against its series and pi against Machin's formula, with extra digits."""
    e = sum((Fraction(1, _factorial(n)) for n in range(60)), Fraction(0))
    pi = 4 * (4 * _arctan_of_inverse(5) - _arctan_of_inverse(239))

    assert abs(Fraction(CONSTANTS["e"]) - e) < Fraction(1, 10**49)
    assert abs(Fraction(CONSTANTS["pi"]) - pi) < Fraction(1, 10**49)


def _factorial(n: int) -> int:
    return 1 if n < 2 else n * _factorial(n - 1)


def _arctan_of_inverse(x: int) -> Fraction:
    terms = (Fraction((-1) ** k, (2 * k + 1) * x ** (2 * k + 1)) for k in range(60))
    return sum(terms, Fraction(0))
