"""The calculator tool."""

from collections.abc import Mapping
from typing import Any

from app.tools.arithmetic.evaluator import Evaluator
from app.tools.arithmetic.notation import MAX_LENGTH
from app.tools.arithmetic.refusal import CalculationRefusedError
from app.tools.ports import ToolContext, ToolResult, ToolSpec, failure

_SPEC = ToolSpec(
    name="calculator",
    deterministic=True,
    description=(
        "Works out an arithmetic expression exactly, in decimal. Use it for every calculation. "
        "Knows + - * / // % ** ^ ! parentheses, percentages such as 17% * 2340, pi, e and the "
        "functions abs, cbrt, ceil, exp, factorial, floor, gcd, lcm, ln, log(x, base), log10, max, "
        "mean, median, min, mod, product, root(x, n), round(x, places), sqrt, sum; and times, such "
        "as (2 hours 30 minutes) * 4 in days. Returns value (decimal text), expression, exact: "
        "false when the value is rounded, and unit if it is a time."
    ),
    parameters={
        "type": "object",
        "additionalProperties": False,
        "required": ["expression"],
        "properties": {
            "expression": {
                "type": "string",
                "minLength": 1,
                "maxLength": MAX_LENGTH,
                "description": (
                    "One expression without words, currency signs or thousands separators, "
                    "such as (3 + 4) * 2340 / 100"
                ),
            }
        },
    },
)


class Calculator:
    """Exact decimal arithmetic on written expressions; a Tool (seed 002, 5.1).

    The result is ``{"value": decimal text, "expression": text, "exact": bool}``; if it is a time it
    also has ``unit``: milliseconds, seconds, minutes, hours, days or weeks.
    """

    spec = _SPEC

    def __init__(self) -> None:
        self._evaluator = Evaluator()

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Evaluate ``args["expression"]``; a refusal is a failure dict with its reason."""
        expression = args.get("expression")
        if not isinstance(expression, str):
            return failure("'expression' must be text, such as '2 + 3'", "invalid_arguments")
        try:
            evaluation = self._evaluator.evaluate(expression)
        except CalculationRefusedError as refusal:
            return failure(str(refusal), refusal.code)
        result: ToolResult = {
            "value": evaluation.value,
            "expression": evaluation.expression,
            "exact": evaluation.exact,
        }
        return result if evaluation.unit is None else {**result, "unit": evaluation.unit}
