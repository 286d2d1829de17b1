"""Several stocks by one metric: the value of each, and the one that comes first."""

from collections.abc import Mapping, Sequence
from typing import Any

from app.tools.analysis.metrics import Metric
from app.tools.analysis.observations import Finding, Observations, Options
from app.tools.ports import ToolResult
from app.tools.stocks.refusal import StockRefusedError

LEAST, MOST = 2, 5
"""How many stocks are compared."""
HIGHEST, LOWEST = "highest", "lowest"
ENDS = (HIGHEST, LOWEST)
"""Which value comes first."""


def ranked(
    metric: Metric, stocks: Mapping[str, Observations], options: Options, first: str
) -> ToolResult:
    """Return the symbol whose value comes first, and the values of all in that order.

    ``stocks`` has what was observed by symbol, all on the same days.

    Raises:
        StockRefusedError: two values share the first place, or are not in one unit.
    """
    found = {symbol: metric.compute(seen, options) for symbol, seen in stocks.items()}
    formula, unit = _shared(list(found.values()))
    order = sorted(found.items(), key=lambda pair: pair[1].value, reverse=first == HIGHEST)
    if order[0][1].value == order[1][1].value:
        raise StockRefusedError(
            f"{order[0][0]} and {order[1][0]} have the same {metric.words}: neither comes first.",
            code="undefined",
        )
    winner = order[0][0]  # the answer to "which stock" is its symbol alone
    result: dict[str, Any] = {"value": winner, "text": winner, "which": first}
    return result | {
        "ranking": [{"symbol": symbol, "value": one.value} for symbol, one in order],
        "unit": unit,
        "formula": formula,
    }


def _shared(found: Sequence[Finding]) -> tuple[str, str]:
    """Return the formula and the unit of all."""
    units = sorted({one.unit for one in found})
    if len(units) > 1:
        raise StockRefusedError(
            f"These figures are in {' and '.join(units)} and cannot be compared.", code="undefined"
        )
    return found[0].formula, units[0]
