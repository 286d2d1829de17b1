"""Builds the results of the analysis tools, with rounding and a sentence for each."""

import math
from collections.abc import Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from caseworker.tools.ports import ToolRefusedError, ToolResult
from caseworker_cases.tools.analysis.metrics import Finding, Metric, Options
from caseworker_cases.tools.analysis.observations import Observations

HIGHEST, LOWEST = "highest", "lowest"
"""Rankings may start with the highest or with the lowest value."""
LEAST_DECIMALS = 4
LEAST_DIGITS = 6
"""Default minimum number of decimals, and of significant digits, in a rounded number."""
_WHOLE_FROM = 1e15
"""Larger floats have no decimals worth rounding."""


def found_in(words: str, finding: Finding, *series: Observations) -> ToolResult:
    """Build a result from a finding and its series; ``worded`` then adds its sentence.

    The result includes the series' names, the formula and the source.
    """
    result: ToolResult = {
        "value": finding.value,
        "unit": finding.unit,
        "of": " and ".join(observed.name for observed in series),
        "words": words,
        "formula": finding.formula,
        **finding.details,
    }
    return _with_origin(result, series)


def ranked(metric: Metric, options: Options, first: str, *series: Observations) -> ToolResult:
    """Rank symbols by a metric and return the top symbol and all values, best first.

    ``first`` is ``HIGHEST`` or ``LOWEST``: whether the ranking starts with the highest or the
    lowest value. ``series`` are prices of different symbols on the same days.
    """
    found = [(observed.symbol, metric.compute(observed, options)) for observed in series]
    units = sorted({one.unit for _, one in found})
    if len(units) > 1:
        message = f"These figures are in {' and '.join(units)} and cannot be compared."
        raise ToolRefusedError(message, code="undefined")
    order = sorted(found, key=lambda pair: pair[1].value, reverse=first == HIGHEST)
    (winner, best), (second, next_best) = order[:2]
    if best.value == next_best.value:
        message = f"{winner} and {second} have the same {metric.words}: neither comes first."
        raise ToolRefusedError(message, code="undefined")
    result: ToolResult = {
        "value": winner,  # the answer to "which stock" is its symbol alone
        "text": winner,
        "which": first,
        "ranking": [{"symbol": symbol, "value": one.value} for symbol, one in order],
        "unit": units[0],
        "formula": best.formula,
    }
    return _with_origin(result, series)


def _with_origin(result: ToolResult, series: Sequence[Observations]) -> ToolResult:
    """Add the symbols, the period, the notes and the source to a result."""
    symbols = [observed.symbol for observed in series if observed.symbol is not None]
    observed = series[0]
    origin: ToolResult = {"observations": len(observed)}
    if symbols:
        origin |= {"symbols": symbols} if len(symbols) > 1 else {"symbol": symbols[0]}
    if observed.days is not None:
        origin |= {"start": observed.days[0].isoformat(), "end": observed.days[-1].isoformat()}
    notes = [result.get("note"), *(one.note for one in series)]
    if joined := " ".join(note for note in notes if note):
        origin |= {"note": joined}
    return {**result, **origin, "source": observed.source}


def worded(result: ToolResult) -> ToolResult:
    """Replace ``words`` by a sentence that states the main value; call it after rounding."""
    words, of, unit = result.pop("words"), result["of"], result["unit"]
    period = f" from {result['start']} to {result['end']}" if "start" in result else ""
    value = f"{result['value']:,}".removesuffix(".0")
    on = f" on {result['date']}" if "date" in result else ""
    return {**result, "text": f"{words} of {of}{period}: {value} {unit}{on}"}


def rounded(value: Any, decimals: int | None) -> Any:
    """Round every float in a JSON value; halves are rounded away from zero."""
    if isinstance(value, Mapping):
        return {name: rounded(part, decimals) for name, part in value.items()}
    if isinstance(value, list):
        return [rounded(part, decimals) for part in value]
    return _rounded(value, decimals) if isinstance(value, float) else value


def _rounded(number: float, decimals: int | None) -> float:
    if not math.isfinite(number):
        raise ToolRefusedError("The result is too large to be stated.", code="too_large")
    exact = Decimal(repr(number))
    if decimals is None:
        decimals = max(LEAST_DECIMALS, LEAST_DIGITS - 1 - exact.adjusted())
    if abs(number) >= _WHOLE_FROM:
        return number
    shown = float(exact.quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP))
    return shown or 0.0  # never -0.0
