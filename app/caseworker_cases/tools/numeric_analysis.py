"""The tool that computes metrics from prices or numbers."""

from collections.abc import Mapping
from statistics import StatisticsError
from typing import Any

from caseworker.tools.arguments import choice, day, items, object_of, whole
from caseworker.tools.ports import ToolContext, ToolFunction, ToolRefusedError, ToolResult, ToolSpec
from caseworker_cases.stocks.inputs import END, PRICE, START, SYMBOL, symbol_of, symbols_of
from caseworker_cases.stocks.price_tool import PriceTool
from caseworker_cases.tools.analysis.metrics import (
    CORRELATION,
    LEAST_FOR_CORRELATION,
    METRICS,
    NAMES,
    TRADING_DAYS_A_YEAR,
    Options,
    correlation_of_returns,
)
from caseworker_cases.tools.analysis.observations import (
    ADJUSTED_CLOSE,
    FIELDS,
    Observations,
    common,
    given,
    priced,
)
from caseworker_cases.tools.analysis.results import (
    HIGHEST,
    LOWEST,
    found_in,
    ranked,
    rounded,
    worded,
)
from caseworker_cases.tools.crosschecks import prices

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
        window=whole(1, MAX_WINDOW, f"Observations in a moving average; default {DEFAULT_WINDOW}"),
        periods_per_year=whole(
            1, 366, "Observations in a year, for annualising; default 252 trading days"
        ),
        decimals=whole(0, 10, "Round the results to so many decimals"),
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
        """Compute the metric ``args["metric"]``."""
        metric = args["metric"]
        decimals = int(args["decimals"]) if "decimals" in args else None
        try:
            if metric == CORRELATION:
                result = worded(rounded(await self._correlation(args), decimals))
            elif "symbols" in args:
                result = rounded(await self._ranking(args), decimals)
            else:
                result = worded(rounded(await self._single(args), decimals))
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
            observed = given(args)
        else:
            _allow(args, "symbol", *_PRICE_ARGS, *metric.uses)
            observed = await priced(self._source, symbol_of(args["symbol"]), args)
        options = _options(args)
        _enough(observed, args, options)
        return found_in(metric.words, metric.compute(observed, options), observed)

    async def _ranking(self, args: Mapping[str, Any]) -> ToolResult:
        metric, options = METRICS[args["metric"]], _options(args)
        _allow(args, "symbols", "which", *_PRICE_ARGS, *metric.uses)
        series = await self._together(args, *COMPARED)
        _enough(series[0], args, options)
        return ranked(metric, options, args.get("which", HIGHEST), *series)

    async def _correlation(self, args: Mapping[str, Any]) -> ToolResult:
        if "values" in args and "other_values" in args:
            _allow(args, "values", "other_values", "dates")
            one, other = common(given(args), given(args, "other_values"))
        elif "symbols" in args:
            _allow(args, "symbols", *_PRICE_ARGS)
            one, other = await self._together(args, 2, 2)
        else:
            raise ToolRefusedError(
                "correlation needs two 'symbols', or 'values' and 'other_values'"
            )
        _enough(one, args, _options(args))
        return found_in("correlation of returns", correlation_of_returns(one, other), one, other)

    async def _together(
        self, args: Mapping[str, Any], least: int, most: int
    ) -> tuple[Observations, ...]:
        """Return the prices of several symbols, restricted to their common days."""
        symbols = symbols_of(args["symbols"], least, most)
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


def _enough(observed: Observations, args: Mapping[str, Any], options: Options) -> None:
    name, least = args["metric"], LEAST_FOR_CORRELATION
    if name != CORRELATION:
        metric = METRICS[name]
        least = max(metric.least, options.window if "window" in metric.uses else 0)
    if len(observed) < least:
        raise ToolRefusedError(
            f"{name} needs at least {least} observations, and there are {len(observed)}.",
            code="too_few_points",
        )
