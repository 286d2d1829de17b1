"""Numbers as results show them."""

import math
from collections.abc import Mapping
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from app.tools.stocks.refusal import StockRefusedError

LEAST_DECIMALS = 4
LEAST_DIGITS = 6
"""Without a wish, a number keeps at least this many decimals and this many significant digits."""
_WHOLE_FROM = 1e15
"""From here on a float has no decimals worth rounding."""


def rounded(value: Any, decimals: int | None) -> Any:
    """Round every number in a JSON value, halves away from zero.

    Raises:
        StockRefusedError: a number is not finite.
    """
    if isinstance(value, Mapping):
        return {name: rounded(part, decimals) for name, part in value.items()}
    if isinstance(value, list):
        return [rounded(part, decimals) for part in value]
    return _rounded(value, decimals) if isinstance(value, float) else value


def _rounded(number: float, decimals: int | None) -> float:
    if not math.isfinite(number):
        raise StockRefusedError("The result is too large to be stated.", code="too_large")
    exact = Decimal(repr(number))
    if decimals is None:
        decimals = max(LEAST_DECIMALS, LEAST_DIGITS - 1 - exact.adjusted())
    if abs(number) >= _WHOLE_FROM:
        return number
    shown = float(exact.quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP))
    return shown or 0.0  # never -0.0
