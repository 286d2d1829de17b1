"""The tool that works out figures from prices or numbers."""

from collections.abc import Mapping
from statistics import StatisticsError
from typing import Any, Self

from app.tools.analysis.metrics import (
    CORRELATION,
    LEAST_FOR_CORRELATION,
    METRICS,
    NAMES,
    Metric,
)
from app.tools.analysis.observations import (
    TRADING_DAYS_A_YEAR,
    Observations,
    Options,
    common,
)
from app.tools.analysis.ranking import ENDS, HIGHEST, LEAST, MOST, ranked
from app.tools.analysis.relations import correlation_of_returns
from app.tools.analysis.results import found_in, with_origin, worded
from app.tools.analysis.rounding import rounded
from app.tools.analysis.subjects import (
    FIELDS,
    MAX_VALUE,
    MAX_VALUES,
    PRICES,
    given,
    priced,
)
from app.tools.ports import ToolContext, ToolResult, ToolSpec, failure
from app.tools.resources import ToolResources
from app.tools.stocks.inputs import END, START, SYMBOL, Inputs
from app.tools.stocks.prices import PriceSource, asking
from app.tools.stocks.refusal import StockRefusedError, unfit

MAX_WINDOW = 1000
_VALUES = {
    "type": "array",
    "items": {"type": "number", "minimum": -MAX_VALUE, "maximum": MAX_VALUE},
    "minItems": 1,
    "maxItems": MAX_VALUES,
}
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
    parameters={
        "type": "object",
        "additionalProperties": False,
        "required": ["metric"],
        "properties": {
            "metric": {"type": "string", "enum": list(NAMES)},
            "symbol": SYMBOL,
            "symbols": {
                "type": "array",
                "items": SYMBOL,
                "minItems": LEAST,
                "maxItems": MOST,
                "description": "Two stocks for correlation, or 2 to 5 to compare",
            },
            "which": {
                "type": "string",
                "enum": list(ENDS),
                "description": "Of several symbols, the value that comes first; default highest",
            },
            "start": START,
            "end": END,
            "field": {
                "type": "string",
                "enum": list(FIELDS),
                "description": "What to look at; default close",
            },
            "price": {
                "type": "string",
                "enum": list(PRICES),
                "description": "adjusted for splits and dividends (default), or raw as traded",
            },
            "values": {**_VALUES, "description": "Your own numbers, instead of a symbol"},
            "other_values": {**_VALUES, "description": "The second series, for correlation alone"},
            "dates": {
                "type": "array",
                "items": {"type": "string", "format": "date"},
                "maxItems": MAX_VALUES,
                "description": "The date of each of the values, ascending, YYYY-MM-DD",
            },
            "window": {
                "type": "integer",
                "minimum": 1,
                "maximum": MAX_WINDOW,
                "description": "Observations in a moving average; default 20",
            },
            "periods_per_year": {
                "type": "integer",
                "minimum": 1,
                "maximum": 366,
                "description": "Observations in a year, for annualising; default 252 trading days",
            },
            "decimals": {
                "type": "integer",
                "minimum": 0,
                "maximum": 10,
                "description": "Round the results to so many decimals",
            },
        },
    },
    timeout_seconds=20.0,
)
_PRICE_ARGS = ("start", "end", "field", "price")


class NumericAnalysis:
    """One metric of one or two series, or of several stocks; a Tool (seed 002, 5.3).

    The result is ``{"metric", "value", "unit", "formula", "observations", "start", "end", "source",
    "text", …}`` with the details of the metric. Returns, volatility and drawdowns are in percent,
    everywhere; every metric is defined where it is computed. Of several stocks the value is the
    symbol that comes first, and ``ranking`` holds the figure of each.
    """

    def __init__(self, source: PriceSource) -> None:
        self._source = source
        self.spec = asking(_SPEC, source)

    @classmethod
    def of(cls, resources: ToolResources) -> Self:
        """Return the tool over what the tools of a process share."""
        return cls(resources.prices)

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Work out ``args["metric"]``; a refusal is a failure dict with its reason."""
        inputs = Inputs(args)
        try:
            metric = inputs.choice("metric", NAMES, "")
            decimals = inputs.whole("decimals", 0, 10, 0) if inputs.has("decimals") else None
            if metric == CORRELATION:
                result = await self._correlation(inputs)
            elif inputs.has("symbols"):
                ranking = await self._ranking(inputs, metric)
                return {"metric": metric, **rounded(ranking, decimals)}
            else:
                result = await self._single(inputs, metric)
            return {"metric": metric, **worded(rounded(result, decimals))}
        except StockRefusedError as refusal:
            return refusal.result()
        except (ArithmeticError, StatisticsError, ValueError):
            return failure("The numbers are too far apart to work this out.", "too_large")

    async def _single(self, inputs: Inputs, name: str) -> ToolResult:
        metric = METRICS[name]
        if inputs.has("values") == inputs.has("symbol"):
            raise unfit(f"{name} needs either 'symbol' or 'values'")
        options = _options(inputs)
        if inputs.has("values"):
            inputs.only("metric", "decimals", "values", "dates", *metric.uses)
            subject = given(inputs)
        else:
            inputs.only("metric", "decimals", "symbol", *_PRICE_ARGS, *metric.uses)
            subject = await priced(inputs, inputs.symbol(), self._source)
        _enough(subject.observations, _least(metric, options), name)
        finding = metric.compute(subject.observations, options)
        return found_in(metric.words, [subject], subject.observations, finding)

    async def _ranking(self, inputs: Inputs, name: str) -> ToolResult:
        metric, options = METRICS[name], _options(inputs)
        inputs.only("metric", "decimals", "symbols", "which", *_PRICE_ARGS, *metric.uses)
        first = inputs.choice("which", ENDS, HIGHEST)
        symbols = inputs.symbols(LEAST, MOST)
        subjects = [await priced(inputs, symbol, self._source) for symbol in symbols]
        seen = common(*(subject.observations for subject in subjects))  # of the same time
        _enough(seen[0], _least(metric, options), name)
        result = ranked(metric, dict(zip(symbols, seen, strict=True)), options, first)
        return with_origin(result, subjects, seen[0])

    async def _correlation(self, inputs: Inputs) -> ToolResult:
        if inputs.has("values"):
            inputs.only("metric", "decimals", "values", "other_values", "dates")
            subjects = [given(inputs), given(inputs, "other_values")]
        else:
            inputs.only("metric", "decimals", "symbols", *_PRICE_ARGS)
            symbols = inputs.symbols(2, 2)
            subjects = [await priced(inputs, symbol, self._source) for symbol in symbols]
        one, other = common(*(subject.observations for subject in subjects))
        _enough(one, LEAST_FOR_CORRELATION, CORRELATION)
        finding = correlation_of_returns(one, other)
        return found_in("correlation of returns", subjects, one, finding)


def _options(inputs: Inputs) -> Options:
    return Options(
        window=inputs.whole("window", 1, MAX_WINDOW, 20),
        periods_per_year=inputs.whole("periods_per_year", 1, 366, TRADING_DAYS_A_YEAR),
    )


def _least(metric: Metric, options: Options) -> int:
    return max(metric.least, options.window if "window" in metric.uses else 0)


def _enough(observed: Observations, least: int, name: str) -> None:
    if len(observed) < least:
        raise StockRefusedError(
            f"{name} needs at least {least} observations, and there are {len(observed)}.",
            code="too_few_points",
        )
