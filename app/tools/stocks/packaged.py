"""The prices that come with the service.

12,154 real trading days of AAPL, FB, GOOG, IBM and MSFT, 2000-03-01 to 2013-03-01: Quandl's WIKI
set, declared public domain by its publisher, as packaged in bokeh-sampledata 2026.1 (see
``data/README.md``). Days are as given there; closes as traded and adjusted closes are kept apart.
"""

import asyncio
import csv
import gzip
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Mapping
from datetime import date
from importlib.resources import files
from types import MappingProxyType

from app.tools.stocks.prices import (
    DailyPrice,
    PriceSeries,
    not_traded,
    out_of_range,
    unknown_symbol,
)

SOURCE = "packaged: Quandl WIKI daily prices 2000-2013, public domain"
CURRENCY = "USD"

_History = Mapping[str, tuple[DailyPrice, ...]]


class PackagedPrices:
    """A PriceSource that never leaves the process; the data is read once, when first needed."""

    external = False

    def __init__(self) -> None:
        self._history: _History | None = None
        self._loading = threading.Lock()

    async def daily(self, symbol: str, start: date | None, end: date | None) -> PriceSeries:
        """Return the trading days of ``symbol``; see PriceSource."""
        history = self._history
        if history is None:
            history = await asyncio.to_thread(self._load)
        return _between(history, symbol, start, end)

    async def warm_up(self) -> None:
        """Read the data now (about 0.1 s in a thread, 3 MB) and not at the first question."""
        await asyncio.to_thread(self._load)

    def _load(self) -> _History:
        with self._loading:
            if self._history is None:
                self._history = _read()
            return self._history


def _between(history: _History, symbol: str, start: date | None, end: date | None) -> PriceSeries:
    days = history.get(symbol)
    if days is None:
        raise unknown_symbol(symbol, sorted(history))
    first, last = days[0].day, days[-1].day
    start, end = start or first, end or last
    if start < first or end > last:
        raise out_of_range(symbol, first, last)
    begin = bisect_left(days, start, key=_day_of)
    stop = bisect_right(days, end, key=_day_of)
    if begin == stop:
        raise not_traded(symbol, start, end, days[begin - 1].day, days[begin].day)
    return PriceSeries(symbol=symbol, source=SOURCE, currency=CURRENCY, days=days[begin:stop])


def _day_of(price: DailyPrice) -> date:
    return price.day


def _read() -> _History:
    packed = files("app.tools.stocks").joinpath("data", "stocks.csv.gz").read_bytes()
    found: dict[str, list[DailyPrice]] = {}
    rows = csv.reader(gzip.decompress(packed).decode("ascii").splitlines())
    next(rows)
    for symbol, day, opened, high, low, close, volume, adjusted in rows:
        price = DailyPrice(
            date.fromisoformat(day),
            float(opened),
            float(high),
            float(low),
            float(close),
            int(volume),
            float(adjusted),
        )
        found.setdefault(symbol, []).append(price)
    return MappingProxyType({symbol: tuple(sorted(days)) for symbol, days in found.items()})
