"""The tool that fetches daily stock prices."""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from statistics import fmean
from types import MappingProxyType
from typing import Any, Final

from caseworker.tools.arguments import choice, day, integer, items, object_of
from caseworker.tools.ports import ToolContext, ToolFunction, ToolResult, ToolSpec
from caseworker_cases.stocks.price_tool import END, START, SYMBOL, PriceTool, fetched, symbol_of
from caseworker_cases.stocks.prices import DailyPrice, PriceSeries
from caseworker_cases.tools.crosschecks import prices

MAX_ROWS: Final = 400
DEFAULT_ROWS: Final = 60
DEFAULT_FIELDS: Final = ("close", "adjusted_close")
DECIMALS = 4
"""Number of decimals to which adjusted prices are rounded. Traded prices are not rounded."""
FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "open": "opening price",
        "high": "highest price",
        "low": "lowest price",
        "close": "closing price",
        "adjusted_close": "adjusted closing price",
        "volume": "volume",
    }
)
"""Maps the fields of a trading day to their names in sentences."""

_SPEC = ToolSpec(
    name="data_fetch_stock",
    deterministic=True,
    description=(
        "Fetches daily prices of a stock: rows of date and the wanted fields, the latest last, and"
        " a summary (first, last, min, max, mean) of the first field over every day asked for. If"
        " there are more days than max_points, rows holds the latest and rows_omitted counts the"
        " others. For one day give the same start and end: value is then the price. For returns,"
        " volatility, averages and the like use numeric_analysis, for pictures plotter; both fetch"
        " by themselves. close is as traded, adjusted_close is adjusted for later splits and"
        " dividends."
    ),
    parameters=object_of(
        "symbol",
        symbol=SYMBOL,
        start=START,
        end=END,
        fields={
            **items(choice(FIELDS), 1, len(FIELDS), f"Default: {' and '.join(DEFAULT_FIELDS)}"),
            "uniqueItems": True,
        },
        max_points=integer(1, MAX_ROWS, f"How many rows to return at most; default {DEFAULT_ROWS}"),
    ),
    functions=(
        ToolFunction(
            name="stock_day",
            description="one day",
            takes="symbol date field",
            places={"start": "{date}", "end": "{date}", "fields": ["{field}"]},
            schemas={"date": day(), "field": choice(FIELDS)},
        ),
    ),
    timeout_seconds=20.0,
)


class DataFetchStock(PriceTool):
    """A Tool that returns daily prices from a PriceSource.

    The result is ``{"symbol", "source", "currency", "start", "end", "count", "columns", "rows",
    "rows_omitted", "summary", "text"}``. ``start`` and ``end`` are the first and the last trading
    day found. For a single day it also has ``value``: the first requested field on that day.
    """

    offer = _SPEC

    async def answer(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Return the prices that the arguments request."""
        fields = list(args.get("fields", DEFAULT_FIELDS))
        limit = int(args.get("max_points", DEFAULT_ROWS))
        series = await fetched(self._source, symbol_of(args["symbol"]), args)
        count = len(series.days)
        summary = _summary(series, fields[0])
        result: ToolResult = {
            "symbol": series.symbol,
            "source": series.source,
            "currency": series.currency,
            "start": series.first.day.isoformat(),
            "end": series.last.day.isoformat(),
            "count": count,
            "columns": ["date", *fields],
            "rows": _rows(series.days[-limit:], fields),
            "rows_omitted": max(0, count - limit),
            "summary": summary,
            "text": _in_words(series, summary),
        }
        if count == 1:
            result["value"] = summary["last"]
        if count > limit:
            result["note"] = (
                f"rows holds the latest {limit} of {count} days; the summary is of all of them."
                " Choose narrower dates to see the others."
            )
        return result

    async def agrees(
        self, args: Mapping[str, Any], result: ToolResult, context: ToolContext
    ) -> bool | None:
        """Return whether selecting the same days from the whole series gives the same summary."""
        return await prices.days_agree(self._source, args, result)


def _rows(days: Sequence[DailyPrice], fields: Sequence[str]) -> list[list[Any]]:
    return [[day.day.isoformat(), *(_field_value(day, field) for field in fields)] for day in days]


def _summary(series: PriceSeries, field: str) -> dict[str, Any]:
    """Return the first, last, lowest, highest and mean value of a field over all days."""
    value = attrgetter(field)
    lowest, highest = min(series.days, key=value), max(series.days, key=value)
    days = {"first": series.first, "last": series.last, "min": lowest, "max": highest}
    return {
        "field": field,
        **{name: _field_value(day, field) for name, day in days.items()},
        "min_date": lowest.day.isoformat(),
        "max_date": highest.day.isoformat(),
        "mean": round(fmean(map(value, series.days)), DECIMALS),
    }


def _in_words(series: PriceSeries, summary: Mapping[str, Any]) -> str:
    field, first = summary["field"], series.first
    decimals, unit = (0, "shares") if field == "volume" else (2, series.currency)
    words = {
        name: f"{summary[name]:,.{decimals}f}" for name in ("first", "last", "min", "max", "mean")
    }
    if len(series.days) == 1:
        return f"{series.symbol}, {FIELDS[field]} on {first.day}: {words['last']} {unit}"
    return (
        f"{series.symbol}, {FIELDS[field]} on {len(series.days):,} trading days from {first.day} to"
        f" {series.last.day}: first {words['first']}, last {words['last']}, lowest {words['min']},"
        f" highest {words['max']}, mean {words['mean']} {unit}"
    )


def _field_value(day: DailyPrice, field: str) -> Any:
    value = getattr(day, field)
    return round(value, DECIMALS) if field == "adjusted_close" else value
