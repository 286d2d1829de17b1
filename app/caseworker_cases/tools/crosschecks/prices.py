"""Recalculates price results: selects days from the whole series and uses other formulas."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

from caseworker.tools.ports import ToolRefusedError, ToolResult
from caseworker_cases.stocks.price_tool import symbol_of
from caseworker_cases.stocks.prices import DailyPrice, PriceSource

_RELATIVE = 1e-5
_MIN_DECIMALS = 4
"""Decimals to compare if the arguments set no number of decimals."""

Days = Sequence[DailyPrice]


async def days_agree(
    source: PriceSource, args: Mapping[str, Any], result: ToolResult
) -> bool | None:
    """Recompute the summary and the value of a fetch result; return whether both are correct.

    The summary is the first, last, lowest, highest and mean price. Numbers are compared to four
    decimals. None means that the source has no prices for the days.
    """
    days = await _days(source, symbol_of(args["symbol"]), args)
    if not days:
        return None
    summary, field = result["summary"], result["summary"]["field"]
    values = [getattr(day, field) for day in days]
    expected = {"first": values[0], "last": values[-1], "min": min(values), "max": max(values)}
    same = all(_near(summary[name], value, 4) for name, value in expected.items())
    one = "value" not in result or _near(result["value"], values[-1], 4)
    return same and one and _near(summary["mean"], sum(values) / len(values), 4)


async def picture_agrees(
    source: PriceSource, args: Mapping[str, Any], result: ToolResult
) -> bool | None:
    """Return whether a chart's reported symbols and days match the prices.

    None means undecidable.
    """
    symbols = [symbol_of(name) for name in args.get("symbols") or [args["symbol"]]]
    days_of_symbols = [await _days(source, symbol, args) for symbol in symbols]
    if not all(days_of_symbols):
        return None
    start = max(days[0].day for days in days_of_symbols).isoformat()
    end = min(days[-1].day for days in days_of_symbols).isoformat()
    return result["symbols"] == symbols and (result["start"], result["end"]) == (start, end)


async def metric_agrees(
    source: PriceSource, args: Mapping[str, Any], result: ToolResult
) -> bool | None:
    """Return whether a metric's value for one or several stocks is correct.

    None means undecidable.
    """
    decimals, metric = int(args.get("decimals", _MIN_DECIMALS)), args["metric"]
    if "periods_per_year" in args:
        return None
    if "symbols" in args:
        symbols = [symbol_of(name) for name in args["symbols"]]
        series = [await _days(source, symbol, args) for symbol in symbols]
        shared = set.intersection(*({day.day for day in days} for days in series))
        values = [_values([day for day in days if day.day in shared], args) for days in series]
        if metric == "correlation":
            return _near(result["value"], _correlation(*map(_returns, values)), decimals)
        years = (max(shared) - min(shared)).days / 365.25
        figures = [_figure(metric, one, years) for one in values]
        if None in figures:
            return None
        figures_by_symbol = dict(
            zip(symbols, (one for one in figures if one is not None), strict=True)
        )
        first = min if args.get("which") == "lowest" else max
        return bool(
            result["value"]
            == first(figures_by_symbol, key=lambda symbol: figures_by_symbol[symbol])
        )
    if "symbol" not in args:
        figure = _figure(metric, [float(value) for value in args.get("values", ())], 0)
    else:
        days = await _days(source, symbol_of(args["symbol"]), args)
        years = (days[-1].day - days[0].day).days / 365.25
        figure = _figure(metric, _values(days, args), years)
    return None if figure is None else _near(result["value"], figure, decimals)


async def _days(source: PriceSource, symbol: str, args: Mapping[str, Any]) -> Days:
    try:
        series = await source.daily(symbol, None, None)
    except ToolRefusedError:
        return ()
    start, end = args.get("start", ""), args.get("end", "9999-12-31")
    return [day for day in series.days if start <= day.day.isoformat() <= end]


def _values(days: Days, args: Mapping[str, Any]) -> list[float]:
    field, raw = args.get("field", "close"), args.get("price") == "raw"
    if field == "adjusted_close" or (field == "close" and not raw):
        return [day.adjusted_close for day in days]
    if field == "volume" or raw:
        return [float(getattr(day, field)) for day in days]
    return [float(getattr(day, field)) / day.close * day.adjusted_close for day in days]


def _near(stated: Any, value: float, decimals: int) -> bool:
    half = 0.51 * 10.0**-decimals
    return math.isclose(float(stated), value, rel_tol=_RELATIVE, abs_tol=half)


def _figure(metric: str, values: Sequence[float], years: float) -> float | None:
    compute = _FIGURES.get(metric)
    if metric == "annualized_return" and years:
        return 100 * math.expm1(math.log(values[-1] / values[0]) / years)
    return None if compute is None or len(values) < 2 else compute(values)


def _returns(values: Sequence[float]) -> list[float]:
    return [(values[at] - values[at - 1]) / values[at - 1] for at in range(1, len(values))]


def _deviation(values: Sequence[float]) -> float:
    """Return the sample standard deviation, computed from differences to the first value."""
    moved, count = [value - values[0] for value in values], len(values)
    squares = math.fsum(value * value for value in moved) - math.fsum(moved) ** 2 / count
    return math.sqrt(max(0.0, squares) / (count - 1))


def _drawdown(values: Sequence[float]) -> float:
    """Return the largest drawdown in percent, computed from the last day backwards."""
    lowest, deepest = values[-1], 0.0
    for value in reversed(values):
        lowest = min(lowest, value)
        deepest = max(deepest, 1 - lowest / value)
    return 100 * deepest


def _median(values: Sequence[float]) -> float:
    ordered, middle = sorted(values), len(values) // 2
    return (ordered[middle] + ordered[-middle - 1]) / 2


def _correlation(one: Sequence[float], other: Sequence[float]) -> float:
    count, sums = len(one), (math.fsum(one), math.fsum(other))
    products = math.fsum(a * b for a, b in zip(one, other, strict=True))
    spread = _deviation(one) * _deviation(other) * (count - 1)
    return (products - sums[0] * sums[1] / count) / spread


_FIGURES: Mapping[str, Callable[[Sequence[float]], float]] = {
    "total_return": lambda values: 100 * (values[-1] - values[0]) / values[0],
    "volatility": lambda values: (
        100
        * math.sqrt(252)
        * _deviation([math.log(later) - math.log(value) for value, later in pairwise(values)])
    ),
    "max_drawdown": _drawdown,
    "best_day": lambda values: 100 * max(_returns(values)),
    "worst_day": lambda values: 100 * min(_returns(values)),
    "daily_returns": lambda values: 100 * math.fsum(_returns(values)) / (len(values) - 1),
    "mean": lambda values: math.fsum(values) / len(values),
    "median": _median,
    "standard_deviation": _deviation,
    "min": lambda values: sorted(values)[0],
    "max": lambda values: sorted(values)[-1],
    "change": lambda values: values[-1] - values[0],
}
