"""Daily prices as a result shows them."""

from collections.abc import Mapping, Sequence
from operator import attrgetter
from statistics import fmean
from types import MappingProxyType
from typing import Any

from app.tools.stocks.prices import DailyPrice, PriceSeries

DECIMALS = 4
"""Of adjusted prices; prices as traded are shown as they are."""

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
"""What may be asked for, and what it is called in words."""


def rows_of(days: Sequence[DailyPrice], fields: Sequence[str]) -> list[list[Any]]:
    """Return one row a day: the date and then the fields."""
    return [[day.day.isoformat(), *(_shown(day, field) for field in fields)] for day in days]


def summary_of(series: PriceSeries, field: str) -> dict[str, Any]:
    """Return the first, last, lowest, highest and mean value of a field over all days."""
    value = attrgetter(field)
    lowest, highest = min(series.days, key=value), max(series.days, key=value)
    return {
        "field": field,
        "first": _shown(series.first, field),
        "last": _shown(series.last, field),
        "min": _shown(lowest, field),
        "min_date": lowest.day.isoformat(),
        "max": _shown(highest, field),
        "max_date": highest.day.isoformat(),
        "mean": round(fmean(map(value, series.days)), DECIMALS),
    }


def in_words(series: PriceSeries, summary: Mapping[str, Any]) -> str:
    """Say in one sentence what was found."""
    field, first = summary["field"], series.first
    told = {name: _told(summary[name], field) for name in ("first", "last", "min", "max", "mean")}
    unit = "shares" if field == "volume" else series.currency
    if len(series.days) == 1:
        return f"{series.symbol}, {FIELDS[field]} on {first.day}: {told['last']} {unit}"
    return (
        f"{series.symbol}, {FIELDS[field]} on {len(series.days):,} trading days from {first.day} to"
        f" {series.last.day}: first {told['first']}, last {told['last']}, lowest {told['min']},"
        f" highest {told['max']}, mean {told['mean']} {unit}"
    )


def _shown(day: DailyPrice, field: str) -> Any:
    value = getattr(day, field)
    return round(value, DECIMALS) if field == "adjusted_close" else value


def _told(number: float, field: str) -> str:
    return f"{number:,.0f}" if field == "volume" else f"{number:,.2f}"
