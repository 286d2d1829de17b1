"""The calculator tool: evaluates text expressions, exactly where possible."""

import ast
from collections.abc import Mapping
from decimal import Decimal
from fractions import Fraction
from typing import Any

from simpleeval import InvalidExpression, SimpleEval  # type: ignore[import-untyped]

from caseworker.tools.arguments import CheckedTool, object_of, text
from caseworker.tools.functions import RESULT_PLACE
from caseworker.tools.ports import ToolContext, ToolFunction, ToolResult, ToolSpec
from caseworker_cases.tools.arithmetic import real
from caseworker_cases.tools.arithmetic.functions import CONSTANTS, FUNCTIONS
from caseworker_cases.tools.arithmetic.notation import malformed, to_python
from caseworker_cases.tools.arithmetic.real import Real, calculation_too_large, decimal_text
from caseworker_cases.tools.crosschecks import arithmetic

MAX_LENGTH = 1000
MAX_OPERATIONS_DEEP = 100
"""Maximum nesting depth of operations. Each further term of a sum adds one level."""

_OPERATORS = {
    ast.Add: real.add,
    ast.Sub: real.subtract,
    ast.Mult: real.multiply,
    ast.Div: real.divide,
    ast.FloorDiv: real.divide_whole,
    ast.Mod: real.remainder,
    ast.Pow: real.power,
    ast.USub: real.negate,
    ast.UAdd: lambda value: value,
}
_CHARACTERS = f"^([0-9a-zA-Z+*/^%!(), .-]|{RESULT_PLACE})+$"
"""Characters that a planner may write in an expression; stops a small model from endless output."""


class Calculator(CheckedTool):
    """A Tool that evaluates text expressions with exact decimal arithmetic.

    The result is ``{"value": text, "expression": text, "exact": bool}``. ``value`` is in plain
    decimal digits without exponent, separators or trailing zeros. ``expression`` is the evaluated
    expression in Python notation. ``exact`` is False if the value is rounded. Error codes are
    ``invalid_expression``, ``division_by_zero``, ``undefined`` (no real result, such as
    ``sqrt(-1)``) and ``calculation_too_large``.
    """

    spec = ToolSpec(
        name="calculator",
        deterministic=True,
        description=(
            "Works out an arithmetic expression exactly, in decimal. Use it for every calculation. "
            "Knows + - * / // % ** ^ ! parentheses, percentages such as 17% * 2340, pi, e and the "
            "functions abs, cbrt, ceil, exp, factorial, floor, gcd, lcm, ln, log(x, base), log10, "
            "max, mean, median, min, mod, product, root(x, n), round(x, places), sqrt, sum. "
            "Returns value (decimal text), expression and exact: false when the value is rounded."
        ),
        parameters=object_of(
            "expression",
            expression=text(
                MAX_LENGTH,
                "One expression without words, currency signs or thousands separators, "
                "such as (3 + 4) * 2340 / 100",
            ),
        ),
        functions=(
            ToolFunction(
                name="calculator",
                description="everything about plain numbers, money and units; a percent change is"
                " (b - a) / a * 100: + - * / ^ ! % sqrt(x) cbrt mean median min max gcd lcm"
                " mod(a, b) round(x, places)",
                takes="expression",
                schemas={"expression": {"type": "string", "pattern": _CHARACTERS}},
            ),
        ),
    )

    def __init__(self) -> None:
        super().__init__()
        machine = SimpleEval(dict(_OPERATORS), dict(FUNCTIONS), dict(CONSTANTS))
        allowed = (ast.BinOp, ast.UnaryOp, ast.Call, ast.Name)
        machine.nodes = {kind: machine.nodes[kind] for kind in allowed}
        machine.nodes[ast.Constant] = lambda node: _written_number(machine.expr, node)
        self._machine = machine
        """Holds the expression being evaluated; safe because evaluation never awaits."""

    async def answer(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Return the value of ``args["expression"]``."""
        expression = to_python(args["expression"], functions=FUNCTIONS, constants=CONSTANTS)
        value, exact = decimal_text(self._value(expression))
        return {"value": value, "expression": expression, "exact": exact}

    async def agrees(
        self, args: Mapping[str, Any], result: ToolResult, context: ToolContext
    ) -> bool | None:
        """Return whether Python's integers and floats give the same value."""
        return arithmetic.expression_agrees(result["expression"], result["value"])

    def _value(self, expression: str) -> Real:
        try:
            tree = ast.parse(expression, mode="eval")
            _check_depth(tree)
            value = self._machine.eval(expression, previously_parsed=tree.body)
        except (InvalidExpression, SyntaxError, RecursionError, MemoryError):
            raise malformed("the text is not an expression") from None
        except TypeError as error:
            raise malformed("a function takes another number of arguments") from error
        if not isinstance(value, Fraction | Decimal):
            raise malformed("the text is not an expression")
        return value


def _written_number(expression: str, node: ast.Constant) -> Fraction:
    """Parse a number from its source text, because Python's float is already rounded."""
    return Fraction(expression[node.col_offset : node.end_col_offset])


def _check_depth(tree: ast.AST) -> None:
    level: list[ast.AST] = [tree]
    for _ in range(MAX_OPERATIONS_DEEP + 2):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
        if not level:
            return
    raise calculation_too_large(
        f"more than {MAX_OPERATIONS_DEEP} operations wait for one another; use sum() or product()"
    )
