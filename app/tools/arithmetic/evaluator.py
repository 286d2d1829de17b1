"""Evaluates a written expression to a number, exactly where that is possible."""

import ast
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from simpleeval import InvalidExpression, SimpleEval  # type: ignore[import-untyped]

from app.tools.arithmetic.functions import CONSTANTS, Function, function_table
from app.tools.arithmetic.notation import to_python
from app.tools.arithmetic.real import Real, RealArithmetic, negate
from app.tools.arithmetic.refusal import malformed, too_large
from app.tools.arithmetic.rendering import decimal_text
from app.tools.arithmetic.units import SECONDS, unit_of

MAX_OPERATIONS_DEEP = 100
"""Operations that wait for one another, such as the terms of one long sum."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The value of an expression."""

    value: str
    """Plain decimal digits, without exponent, separators or needless zeros."""
    expression: str
    """What was evaluated, in Python's notation."""
    exact: bool
    """False when ``value`` is rounded."""
    unit: str | None = None
    """The unit of time that the value is in; None for a number."""


class Evaluator:
    """Evaluates expressions; one is enough for a process."""

    def __init__(self) -> None:
        arithmetic = self._arithmetic = RealArithmetic()
        self._functions: dict[str, Function] = function_table(arithmetic)
        self._operators = {
            ast.Add: arithmetic.add,
            ast.Sub: arithmetic.subtract,
            ast.Mult: arithmetic.multiply,
            ast.Div: arithmetic.divide,
            ast.FloorDiv: arithmetic.divide_whole,
            ast.Mod: arithmetic.remainder,
            ast.Pow: arithmetic.power,
            ast.USub: negate,
            ast.UAdd: lambda value: value,
        }

    def evaluate(self, text: str) -> Evaluation:
        """Return the value of ``text``.

        Raises:
            CalculationRefusedError: it is not an expression, is beyond a limit or has no value.
        """
        notation = to_python(text, functions=self._functions, constants=CONSTANTS)
        expression = notation.expression
        try:
            tree = ast.parse(expression, mode="eval")
        except (SyntaxError, RecursionError, MemoryError):
            raise malformed("the text is not an expression") from None
        _check_depth(tree)
        unit = unit_of(tree, notation.wanted)
        real = self._value(expression, tree)
        value, exact = decimal_text(real if unit is None else self._told_in(unit, real))
        return Evaluation(value=value, expression=expression, exact=exact, unit=unit)

    def _told_in(self, unit: str, seconds: Real) -> Real:
        return self._arithmetic.divide(seconds, SECONDS[unit])

    def _value(self, expression: str, tree: ast.Expression) -> Real:
        # The machine is fresh for every expression: simpleeval keeps the text it works on.
        machine = SimpleEval(
            operators=self._operators, functions=self._functions, names={**CONSTANTS, **SECONDS}
        )
        allowed = (ast.BinOp, ast.UnaryOp, ast.Call, ast.Name)
        machine.nodes = {kind: machine.nodes[kind] for kind in allowed}
        machine.nodes[ast.Constant] = lambda node: _written_number(expression, node)
        try:
            value = machine.eval(expression, previously_parsed=tree.body)
        except (InvalidExpression, RecursionError):
            raise malformed("the text is not an expression") from None
        if not isinstance(value, Fraction | Decimal):
            raise malformed("the text is not an expression")
        return value


def _written_number(expression: str, node: ast.Constant) -> Fraction:
    """Read a number from its own digits: Python's float would already have rounded it."""
    return Fraction(expression[node.col_offset : node.end_col_offset])


def _check_depth(tree: ast.AST) -> None:
    level: list[ast.AST] = [tree]
    for _ in range(MAX_OPERATIONS_DEEP + 2):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return
    raise too_large(
        f"more than {MAX_OPERATIONS_DEEP} operations wait for one another; use sum() or product()"
    )
