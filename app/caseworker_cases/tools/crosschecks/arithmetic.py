"""Recalculates expressions with Python's integers and binary floats."""

import ast
import math
import operator
from collections.abc import Callable, Mapping
from decimal import ROUND_HALF_UP, Decimal
from statistics import fmean, median
from typing import Any

_MAX_BITS = 50_000
_RELATIVE, _ABSOLUTE = 1e-9, 1e-12
_TIE = 1e-6
"""A float this close to a rounding tie cannot decide which rounding is correct."""


class _UndecidedError(Exception):
    """The recalculation cannot decide."""


def expression_agrees(expression: str, value: str) -> bool | None:
    """Return whether an expression in Python notation evaluates to ``value``.

    Integers must be equal. Other numbers must agree to nine digits. None means undecidable.
    """
    try:
        computed = _value(ast.parse(expression, mode="eval").body)
        stated = Decimal(value)
        if isinstance(computed, int) and stated == stated.to_integral_value():
            return Decimal(computed) == stated
        if not math.isfinite(computed):
            return None
        return math.isclose(float(stated), computed, rel_tol=_RELATIVE, abs_tol=_ABSOLUTE)
    except (_UndecidedError, ArithmeticError, ValueError, TypeError):
        return None
    except (SyntaxError, RecursionError, MemoryError):
        return None


def _value(node: ast.expr) -> int | float:
    match node:
        case ast.Constant(value=int() | float() as number):
            return number
        case ast.Name(id=name) if name in _CONSTANTS:
            return _CONSTANTS[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            return _value(operand)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _SIGNS:
            return _SIGNS[type(sign)](_value(left), _value(right))
        case ast.Call(func=ast.Name(id=name), args=args) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*map(_value, args))
        case _:
            raise _UndecidedError


def _divided(one: float, other: float) -> int | float:
    if isinstance(one, int) and isinstance(other, int) and one % other == 0:
        return one // other
    return one / other


def _power(base: float, exponent: float) -> int | float:
    if isinstance(base, int) and isinstance(exponent, int) and exponent >= 0:
        if base.bit_length() * exponent > _MAX_BITS:
            raise _UndecidedError
        return int(base**exponent)
    return math.pow(base, exponent)


def _of_integers(calculate: Callable[..., int]) -> Callable[..., int]:
    """Restrict a function to integers: near an integer quotient, floats may fall on either side."""

    def checked(*values: float) -> int:
        if not all(isinstance(value, int) for value in values):
            raise _UndecidedError
        return calculate(*values)

    return checked


def _rounded(value: float, places: float = 0) -> int | float:
    exact = value if isinstance(value, int) else Decimal(repr(value))
    scaled = Decimal(exact).scaleb(int(places))
    if not isinstance(value, int) and abs(abs(scaled % 1) - Decimal("0.5")) < _TIE:
        raise _UndecidedError
    return float(scaled.quantize(Decimal(1), ROUND_HALF_UP).scaleb(-int(places)))


def _root(value: float, degree: float = 2) -> float:
    if value < 0:
        raise _UndecidedError
    return float(value ** (1 / degree))


_CONSTANTS: Mapping[str, float] = {"pi": math.pi, "e": math.e}
_SIGNS: Mapping[type, Callable[[Any, Any], int | float]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: _divided,
    ast.FloorDiv: _of_integers(operator.floordiv),
    ast.Mod: _of_integers(operator.mod),
    ast.Pow: _power,
}
_FUNCTIONS: Mapping[str, Callable[..., int | float]] = {
    "abs": abs,
    "cbrt": math.cbrt,
    "ceil": math.ceil,
    "exp": math.exp,
    "factorial": _of_integers(math.factorial),
    "floor": math.floor,
    "gcd": _of_integers(math.gcd),
    "lcm": _of_integers(math.lcm),
    "ln": math.log,
    "log": math.log,
    "log10": math.log10,
    "max": max,
    "mean": lambda *values: fmean(values),
    "median": lambda *values: median(values),
    "min": min,
    "mod": _of_integers(operator.mod),
    "product": lambda *values: math.prod(values),
    "root": _root,
    "round": _rounded,
    "sqrt": math.sqrt,
    "sum": lambda *values: sum(values),
}
