"""The tool that fetches daily stock prices."""

from collections.abc import Mapping
from typing import Any, Final, Self

from app.tools.ports import ToolContext, ToolResult, ToolSpec
from app.tools.resources import ToolResources
from app.tools.stocks.inputs import END, START, SYMBOL, Inputs, fetched
from app.tools.stocks.prices import PriceSeries, PriceSource, asking
from app.tools.stocks.refusal import StockRefusedError, unfit
from app.tools.stocks.table import FIELDS, in_words, rows_of, summary_of

MAX_ROWS: Final = 400
DEFAULT_ROWS: Final = 60
DEFAULT_FIELDS: Final = ("close", "adjusted_close")

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
    parameters={
        "type": "object",
        "additionalProperties": False,
        "required": ["symbol"],
        "properties": {
            "symbol": SYMBOL,
            "start": START,
            "end": END,
            "fields": {
                "type": "array",
                "items": {"type": "string", "enum": list(FIELDS)},
                "minItems": 1,
                "uniqueItems": True,
                "description": f"Default: {' and '.join(DEFAULT_FIELDS)}",
            },
            "max_points": {
                "type": "integer",
                "minimum": 1,
                "maximum": MAX_ROWS,
                "description": f"How many rows to return at most; default {DEFAULT_ROWS}",
            },
        },
    },
    timeout_seconds=20.0,
)


class DataFetchStock:
    """Daily prices from a PriceSource; a Tool (seed 002, 5.3).

    The result is ``{"symbol", "source", "currency", "start", "end", "count", "columns", "rows",
    "rows_omitted", "summary", "text"}``, where ``start`` and ``end`` are the first and the last
    trading day found. A single day also has ``value``: the first field on that day.
    """

    def __init__(self, source: PriceSource) -> None:
        self._source = source
        self.spec = asking(_SPEC, source)

    @classmethod
    def of(cls, resources: ToolResources) -> Self:
        """Return the tool over what the tools of a process share."""
        return cls(resources.prices)

    async def run(self, args: Mapping[str, Any], context: ToolContext) -> ToolResult:
        """Fetch what ``args`` ask for; a refusal is a failure dict with its reason."""
        inputs = Inputs(args)
        try:
            inputs.only(*_SPEC.parameters["properties"])
            fields = _fields(inputs)
            limit = inputs.whole("max_points", 1, MAX_ROWS, DEFAULT_ROWS)
            series = await fetched(self._source, inputs.symbol(), inputs.period())
        except StockRefusedError as refusal:
            return refusal.result()
        return _result(series, fields, limit)


def _fields(inputs: Inputs) -> list[str]:
    fields = inputs.args.get("fields", DEFAULT_FIELDS)
    if not isinstance(fields, list | tuple) or not fields:
        raise unfit("'fields' must be a list of at least one field")
    if any(not isinstance(field, str) or field not in FIELDS for field in fields):
        raise unfit(f"each of 'fields' must be one of {', '.join(FIELDS)}")
    return list(dict.fromkeys(fields))


def _result(series: PriceSeries, fields: list[str], limit: int) -> ToolResult:
    count = len(series.days)
    summary = summary_of(series, fields[0])
    result: ToolResult = {
        "symbol": series.symbol,
        "source": series.source,
        "currency": series.currency,
        "start": series.first.day.isoformat(),
        "end": series.last.day.isoformat(),
        "count": count,
        "columns": ["date", *fields],
        "rows": rows_of(series.days[-limit:], fields),
        "rows_omitted": max(0, count - limit),
        "summary": summary,
        "text": in_words(series, summary),
    }
    if count == 1:
        result["value"] = summary["last"]
    if count > limit:
        result["note"] = (
            f"rows holds the latest {limit} of {count} days; the summary is of all of them. Choose"
            " narrower dates to see the others."
        )
    return result
