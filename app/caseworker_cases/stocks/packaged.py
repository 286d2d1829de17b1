"""The price data packaged with the service.

12,154 real trading days of AAPL, FB, GOOG, IBM and MSFT, 2000-03-01 to 2013-03-01: Quandl's WIKI
set, declared public domain by its publisher, as packaged in bokeh-sampledata 2026.1 (see
``data/README.md``). Days are unchanged; traded and adjusted closing prices are kept separate.
"""

import asyncio
import csv
import gzip
import threading
from collections.abc import Mapping
from datetime import date
from importlib.resources import files
from types import MappingProxyType

from caseworker_cases.stocks.prices import DailyPrice, PriceSeries, unknown_symbol

SOURCE = "packaged: Quandl WIKI daily prices 2000-2013, public domain"
CURRENCY = "USD"

_OTHER_SYMBOLS = MappingProxyType({"GOOGL": "GOOG", "META": "FB"})
"""Current symbols of shares in the set; its GOOG has been GOOGL since 2014."""

_History = Mapping[str, PriceSeries]


class PackagedPrices:
    """A PriceSource that makes no external calls; it loads the packaged data on first use."""

    external = False

    def __init__(self) -> None:
        self._history: _History | None = None
        self._loading = threading.Lock()

    async def daily(self, symbol: str, start: date | None, end: date | None) -> PriceSeries:
        """Return the trading days of ``symbol``; see PriceSource."""
        history = self._history
        if history is None:
            history = await asyncio.to_thread(self._load)
        series = history.get(_OTHER_SYMBOLS.get(symbol, symbol))
        if series is None:
            raise unknown_symbol(symbol, ", ".join(sorted(history)))
        return series.between(start, end)

    def _load(self) -> _History:
        with self._loading:
            if self._history is None:
                self._history = _read()
            return self._history


def _read() -> _History:
    packed = files("caseworker_cases.stocks").joinpath("data", "stocks.csv.gz").read_bytes()
    days_by_symbol: dict[str, list[DailyPrice]] = {}
    rows = csv.reader(gzip.decompress(packed).decode("ascii").splitlines())
    next(rows)
    for symbol, day, opened, high, low, close, volume, adjusted in rows:
        price = DailyPrice(
            date.fromisoformat(day),
            *(float(opened), float(high), float(low), float(close)),
            volume=int(volume),
            adjusted_close=float(adjusted),
        )
        days_by_symbol.setdefault(symbol, []).append(price)
    return {
        symbol: PriceSeries(
            symbol=symbol, source=SOURCE, currency=CURRENCY, days=tuple(sorted(days))
        )
        for symbol, days in days_by_symbol.items()
    }
