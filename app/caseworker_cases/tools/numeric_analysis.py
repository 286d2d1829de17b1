"""The tool that computes metrics from prices or numbers, with rounding and a sentence for each."""

import math
from collections.abc import Mapping, Sequence
from decimal import ROUND_HALF_UP, Decimal
from statistics import StatisticsError
from typing import Any

from caseworker.tools.arguments import choice, day, integer, items, object_of
from caseworker.tools.ports import ToolContext, ToolFunction, ToolRefusedError, ToolResult, ToolSpec
from caseworker_cases.stocks.price_tool import (
    END,
    PRICE,
    START,
    SYMBOL,
    PriceTool,
    symbol_of,
    symbols_of,
)
from caseworker_cases.tools.analysis.metrics import (
    CORRELATION,
    METRICS,
    MIN_FOR_CORRELATION,
    NAMES,
    TRADING_DAYS_A_YEAR,
    Finding,
    Metric,
    Options,
    correlation_of_returns,
)
from caseworker_cases.tools.analysis.observations import (
    ADJUSTED_CLOSE,
    FIELDS,
    Observations,
    common,
    observations_in,
    priced,
)
from caseworker_cases.tools.crosschecks import prices

HIGHEST, LOWEST = "highest", "lowest"
"""Rankings may start with the highest or with the lowest value."""
MIN_DECIMALS = 4
MIN_DIGITS = 6
"""Default minimum number of decimals, and of significant digits, in a rounded number."""
_WHOLE_FROM = 1e15
"""Larger floats have no decimals worth rounding."""


def found_in(words: str, finding: Finding, *series: Observations) -> ToolResult:
    """Build a result from a finding and its series; ``worded`` then adds its sentence.

    The result includes the series' names, the formula and the source.
    """
    of = " and ".join(observed.name for observed in series)
    first = {"value": finding["value"], "unit": finding["unit"], "of": of, "words": words}
    return _with_origin({**first, **finding}, series)  # the order that models read


def ranked(metric: Metric, options: Options, first: str, *series: Observations) -> ToolResult:
    """Rank symbols by a metric and return the top symbol and all values, best first.

    ``first`` is ``HIGHEST`` or ``LOWEST``: whether the ranking starts with the highest or the
    lowest value. ``series`` are prices of different symbols on the same days.

    Raises:
        ToolRefusedError: the values have different units, or the first two are equal.
    """
    figures = [(observed.symbol, metric.compute(observed, options)) for observed in series]
    units = sorted({one["unit"] for _, one in figures})
    if len(units) > 1:
        message = f"These figures are in {' and '.join(units)} and cannot be compared."
        raise ToolRefusedError(message, code="undefined")
    order = sorted(figures, key=lambda pair: pair[1]["value"], reverse=first == HIGHEST)
    (winner, best), (second, next_best) = order[:2]
    if best["value"] == next_best["value"]:
        message = f"{winner} and {second} have the same {metric.words}: neither comes first."
        raise ToolRefusedError(message, code="undefined")
    result: ToolResult = {
        "value": winner,  # the answer to "which stock" is its symbol alone
        "text": winner,
        "which": first,
        "ranking": [{"symbol": symbol, "value": one["value"]} for symbol, one in order],
        "unit": units[0],
        "formula": best["formula"],
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


def rounded_floats(value: Any, decimals: int | None) -> Any:
    """Round every float in a JSON value; halves are rounded away from zero."""
    if isinstance(value, Mapping):
        return {name: rounded_floats(part, decimals) for name, part in value.items()}
    if isinstance(value, list):
        return [rounded_floats(part, decimals) for part in value]
    return _rounded(value, decimals) if isinstance(value, float) else value


def _rounded(number: float, decimals: int | None) -> float:
    if not math.isfinite(number):
        raise ToolRefusedError("The result is too large to be stated.", code="too_large")
    exact = Decimal(repr(number))
    if decimals is None:
        decimals = max(MIN_DECIMALS, MIN_DIGITS - 1 - exact.adjusted())
    if abs(number) >= _WHOLE_FROM:
        return number
    rounded = float(exact.quantize(Decimal(1).scaleb(-decimals), ROUND_HALF_UP))
    return rounded or 0.0  # never -0.0


COMPARED = 2, 5
DEFAULT_WINDOW, MAX_WINDOW = 20, 1000
MAX_VALUES = 5000
MAX_VALUE = 1e15
_VALUE = {"type": "number", "minimum": -MAX_VALUE, "maximum": MAX_VALUE}
_FIGURES = (
    *("mean", "max", "min", "median", "total_return", "annualized_return", "volatility"),
    *("max_drawdown", "change", "best_day", "worst_day"),
)
"""The metrics offered to planners."""
_FIELDS = (ADJUSTED_CLOSE, *(name for name in FIELDS if name != ADJUSTED_CLOSE))
_SPEC = ToolSpec(
    name="numeric_analysis",
    deterministic=True,
    description=(
        "Works out one figure from the daily prices of a stock (symbol, and optionally start and"
        " end; it fetches them itself) or from your own values in the order of time (and"
        " optionally their dates). Metrics: total_return, annualized_return, daily_returns,"
        " volatility, max_drawdown, best_day and worst_day, all in percent; moving_average"
        " (window), mean, median, standard_deviation, min, max, change and trend, in the unit of"
        " the values; correlation of two symbols (or of values and other_values). With symbols any"
        " other metric compares 2 to 5 stocks: the value is the one that comes first, by which, and"
        " ranking has all figures. Returns value, unit, the formula in words, the number of"
        " observations and the dates used. Prices are adjusted closes unless told otherwise; price"
        " raw is what was paid on the day."
    ),
    parameters=object_of(
        "metric",
        metric=choice(NAMES),
        symbol=SYMBOL,
        symbols=items(SYMBOL, *COMPARED, "Two stocks for correlation, or 2 to 5 to compare"),
        which=choice(
            (HIGHEST, LOWEST), "Of several symbols, the value that comes first; default highest"
        ),
        start=START,
        end=END,
        field=choice(FIELDS, "What to look at; default close"),
        price=PRICE,
        values=items(_VALUE, 1, MAX_VALUES, "Your own numbers, instead of a symbol"),
        other_values=items(_VALUE, 1, MAX_VALUES, "The second series, for correlation alone"),
        dates=items(day(), 0, MAX_VALUES, "The date of each of the values, ascending, YYYY-MM-DD"),
        window=integer(
            1, MAX_WINDOW, f"Observations in a moving average; default {DEFAULT_WINDOW}"
        ),
        periods_per_year=integer(
            1, 366, "Observations in a year, for annualising; default 252 trading days"
        ),
        decimals=integer(0, 10, "Round the results to so many decimals"),
    ),
    functions=(
        ToolFunction(
            name="stock_period",
            description="a stock's mean, highest, change or other figure over many days",
            takes="symbol metric field start end decimals?",
            fixed={"price": "raw"},
            schemas={"metric": choice(_FIGURES), "field": choice(_FIELDS)},
        ),
        ToolFunction(
            name="stock_compare",
            description="which is first",
            takes="symbols which metric start end",
            schemas={"metric": choice(_FIGURES)},
        ),
        ToolFunction(
            name="stock_correlation",
            takes="symbols start end decimals?",
            fixed={"metric": CORRELATION},
        ),
    ),
    timeout_seconds=20.0,
)
_ALWAYS = ("metric", "decimals")
_PRICE_ARGS = ("start", "end", "field", "price")


class NumericAnalysis(PriceTool):
    """A Tool that computes one metric for one or two series, or compares stocks.

    The result is ``{"metric", "value", "unit", "formula", "observations", "start", "end", "source",
    "text", …}``, followed by details of the metric. Returns, volatility and drawdowns are always in
    percent; each metric is defined where it is computed. For a comparison the value is the symbol
    that ranks first, and ``ranking`` holds the metric for each stock.
    """

    offer = _SPEC

    async def answer(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Compute the metric ``args["metric"]``.

        Raises:
            ToolRefusedError: an argument is invalid, or the metric is undefined.
        """
        metric = args["metric"]
        decimals = int(args["decimals"]) if "decimals" in args else None
        try:
            if metric == CORRELATION:
                result = worded(rounded_floats(await self._correlation(args), decimals))
            elif "symbols" in args:
                result = rounded_floats(await self._ranking(args), decimals)
            else:
                result = worded(rounded_floats(await self._single(args), decimals))
        except (ArithmeticError, StatisticsError, ValueError) as error:
            raise ToolRefusedError(
                "The numbers are too far apart to work this out.", code="too_large"
            ) from error
        return {"metric": metric, **result}

    async def agrees(
        self, args: Mapping[str, Any], result: ToolResult, context: ToolContext
    ) -> bool | None:
        """Return whether another formula gives the same value for the same days."""
        return await prices.metric_agrees(self._source, args, result)

    async def _single(self, args: Mapping[str, Any]) -> ToolResult:
        metric = METRICS[args["metric"]]
        if ("values" in args) == ("symbol" in args):
            raise ToolRefusedError(f"{args['metric']} needs either 'symbol' or 'values'")
        if "values" in args:
            _allow(args, "values", "dates", *metric.uses)
            observed = observations_in(args)
        else:
            _allow(args, "symbol", *_PRICE_ARGS, *metric.uses)
            observed = await priced(self._source, symbol_of(args["symbol"]), args)
        options = _options(args)
        _require_observations(observed, args, options)
        return found_in(metric.words, metric.compute(observed, options), observed)

    async def _ranking(self, args: Mapping[str, Any]) -> ToolResult:
        metric, options = METRICS[args["metric"]], _options(args)
        _allow(args, "symbols", "which", *_PRICE_ARGS, *metric.uses)
        series = await self._together(args, *COMPARED)
        _require_observations(series[0], args, options)
        return ranked(metric, options, args.get("which", HIGHEST), *series)

    async def _correlation(self, args: Mapping[str, Any]) -> ToolResult:
        if "values" in args and "other_values" in args:
            _allow(args, "values", "other_values", "dates")
            one, other = common(observations_in(args), observations_in(args, "other_values"))
        elif "symbols" in args:
            _allow(args, "symbols", *_PRICE_ARGS)
            one, other = await self._together(args, 2, 2)
        else:
            raise ToolRefusedError(
                "correlation needs two 'symbols', or 'values' and 'other_values'"
            )
        _require_observations(one, args, _options(args))
        return found_in("correlation of returns", correlation_of_returns(one, other), one, other)

    async def _together(
        self, args: Mapping[str, Any], minimum: int, maximum: int
    ) -> tuple[Observations, ...]:
        """Return the prices of several symbols, restricted to their common days."""
        symbols = symbols_of(args["symbols"], minimum, maximum)
        return common(*[await priced(self._source, symbol, args) for symbol in symbols])


def _allow(args: Mapping[str, Any], *names: str) -> None:
    """Refuse arguments other than ``names`` and those common to all metrics."""
    if unused := sorted(args.keys() - {*_ALWAYS, *names}):
        raise ToolRefusedError(f"{', '.join(unused)} cannot be used here: leave it out")


def _options(args: Mapping[str, Any]) -> Options:
    return Options(
        window=int(args.get("window", DEFAULT_WINDOW)),
        periods_per_year=int(args.get("periods_per_year", TRADING_DAYS_A_YEAR)),
    )


def _require_observations(
    observed: Observations, args: Mapping[str, Any], options: Options
) -> None:
    name, minimum = args["metric"], MIN_FOR_CORRELATION
    if name != CORRELATION:
        metric = METRICS[name]
        minimum = max(metric.min_observations, options.window if "window" in metric.uses else 0)
    if len(observed) < minimum:
        raise ToolRefusedError(
            f"{name} needs at least {minimum} observations, and there are {len(observed)}.",
            code="too_few_points",
        )
