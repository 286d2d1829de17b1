"""Units of time in expressions: how long they are, and what may be done with them.

A quantity is a number of units. Two of them are added, subtracted and compared; one is multiplied
and divided by numbers, and divided by another one, which leaves a number. What is whole in one unit
is not in another, so no quantity is rounded, and ``//`` takes none beside a number. Months and
years are no units: their length depends on the calendar.
"""

import ast
from collections.abc import Mapping, Sequence
from fractions import Fraction
from types import MappingProxyType
from typing import Final

from app.tools.arithmetic.refusal import CalculationRefusedError, malformed

SECONDS: Final[Mapping[str, Fraction]] = MappingProxyType(
    {
        "milliseconds": Fraction(1, 1000),
        "seconds": Fraction(1),
        "minutes": Fraction(60),
        "hours": Fraction(3600),
        "days": Fraction(86_400),
        "weeks": Fraction(604_800),
    }
)
"""How many seconds each unit has; a day has 24 hours here."""

_SHORT = {
    "ms": "milliseconds",
    "s": "seconds",
    "sec": "seconds",
    "secs": "seconds",
    "min": "minutes",
    "mins": "minutes",
    "h": "hours",
    "hr": "hours",
    "hrs": "hours",
    "d": "days",
}
UNITS: Final[Mapping[str, str]] = MappingProxyType(
    {name: name for name in SECONDS} | {name.removesuffix("s"): name for name in SECONDS} | _SHORT
)
"""Units by all names that they go by."""

_CALENDAR_UNITS = frozenset({"month", "months", "year", "years"})
_KEEPING = frozenset({"abs", "max", "mean", "median", "min", "sum"})
"""Functions of quantities whose result is a quantity."""


def refuse_calendar_units(name: str) -> None:
    """Refuse a unit that has no length of its own.

    Raises:
        CalculationRefusedError: ``name`` is one.
    """
    if name in _CALENDAR_UNITS:
        raise malformed(f"{name} are of different lengths; count with dates in the calendar")


def unit_of(tree: ast.Expression, wanted: str | None) -> str | None:
    """Return the unit in which the value of an expression is to be told; None for a number.

    It is the one that is ``wanted``, or the smallest one that the expression names.

    Raises:
        CalculationRefusedError: quantities are used in a way that has no sense, or a unit is wanted
            for a number.
    """
    power = _power(tree.body)
    if power == 0 and wanted is None:
        return None
    if power == 0:
        raise malformed(f"the result is a number and not a time: leave 'in {wanted}' out")
    if power != 1:
        raise malformed("the result is no time; put parentheses around a fraction: (1/2) hour")
    named = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return wanted or min((name for name in named if name in SECONDS), key=SECONDS.__getitem__)


def _power(node: ast.expr) -> int:
    """Return how often time is a factor of what a part of an expression stands for."""
    match node:
        case ast.Name():
            return int(node.id in SECONDS)
        case ast.UnaryOp():
            return _power(node.operand)
        case ast.BinOp():
            return _combined(node.op, _power(node.left), _power(node.right))
        case ast.Call():
            return _called(node, [_power(argument) for argument in node.args])
        case _:
            return 0


def _combined(operator: ast.operator, left: int, right: int) -> int:
    match operator:
        case ast.Mult():
            return left + right
        case ast.Div():
            return left - right
        case ast.FloorDiv():
            if left != right:  # how much is left out would depend on the unit
                raise malformed(
                    "// takes two times or two numbers; divide by a unit first: "
                    "(10 days / days) // 3"
                )
            return 0
        case ast.Pow():
            if left or right:
                raise malformed("a time cannot be raised to a power, nor be an exponent")
            return 0
        case _:
            if left != right:
                raise _mixed()
            return left


def _called(node: ast.Call, powers: Sequence[int]) -> int:
    name = node.func.id if isinstance(node.func, ast.Name) else ""
    if not any(powers):
        return 0
    if name not in _KEEPING:
        raise malformed(f"{name} takes numbers; divide by a unit first: {name}(90 minutes / hours)")
    if len(set(powers)) > 1:
        raise _mixed()
    return powers[0]


def _mixed() -> CalculationRefusedError:
    return malformed("a time and a number cannot be added or compared; give each its unit")
