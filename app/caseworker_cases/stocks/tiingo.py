"""Daily prices from Tiingo, with an API key (https://www.tiingo.com/documentation/end-of-day).

Accounts have a limited number of requests. A symbol's whole history is therefore fetched at once
and cached. A case that fetches prices, computes with them and plots them makes one request.
"""

import asyncio
import csv
import math
import time
from collections.abc import Callable, Mapping
from datetime import date
from types import MappingProxyType
from typing import Final
from urllib.parse import quote
from weakref import WeakValueDictionary

import httpx
from cachetools import TTLCache

from caseworker.platform.fair_slots import FairSlots
from caseworker.platform.retry_after import retry_after_seconds
from caseworker.tools.ports import ToolRefusedError
from caseworker_cases.stocks.prices import UNAVAILABLE, DailyPrice, PriceSeries, unknown_symbol

BASE_URL: Final = "https://api.tiingo.com"
SOURCE: Final = "live: Tiingo end-of-day prices"
CURRENCY: Final = "USD"

KEPT_SECONDS: Final = 900.0
MAX_KEPT_DAYS: Final = 100_000
"""Maximum number of cached trading days of all symbols together, which take about 30 MB."""
MAX_REPLY_BYTES: Final = 6_000_000
"""Maximum size of the reply for one symbol, in bytes: four times the size of a reply with 100 bytes
per day since 1960."""
MAX_IN_FLIGHT: Final = 4
MAX_DAYS: Final = 40_000
"""Maximum number of days in a reply, more than the trading days of 150 years."""
LONGEST_WAIT_SECONDS: Final = 31_536_000.0
"""Maximum retry delay to report, in seconds (one year). JSON may be unable to represent a longer
delay."""

_FIRST_DAY = "1960-01-01"
_SERVED = "shares, funds and ETFs that are traded in the United States, by ticker"
_RENAMED = MappingProxyType({"FB": "META"})
_DATE_CHARS = 10  # 2012-01-03, without the time
_COLUMNS = frozenset({"date", "open", "high", "low", "close", "volume", "adjClose"})


class TiingoPrices:
    """A PriceSource that sends HTTPS requests; it must be closed.

    Share classes are written with a dot or a dash, such as BRK.B. All prices are in US dollars:
    Chinese listings, whose tickers are numbers, are not requested.
    """

    external = True

    def __init__(
        self,
        api_key: str,
        *,
        base_url: str | None = None,
        timeout_seconds: float,
        timer: Callable[[], float] = time.monotonic,
    ) -> None:
        """Use ``api_key`` for requests; ``timer`` measures how long a reply is cached."""
        self._http = httpx.AsyncClient(
            base_url=base_url or BASE_URL,
            headers={"Authorization": f"Token {api_key}", "Accept-Encoding": "identity"},
            timeout=timeout_seconds,
            # Callers wait for a semaphore, not for the pool: a pool can lose capacity when waiters
            # are cancelled.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=MAX_IN_FLIGHT),
            follow_redirects=False,
        )
        self._timeout_seconds = timeout_seconds
        self._in_flight = FairSlots(MAX_IN_FLIGHT)
        self._asking: WeakValueDictionary[str, FairSlots] = WeakValueDictionary()
        self._cache: TTLCache[str, PriceSeries] = TTLCache(
            MAX_KEPT_DAYS, KEPT_SECONDS, timer, getsizeof=lambda series: len(series.days)
        )

    async def daily(self, symbol: str, start: date | None, end: date | None) -> PriceSeries:
        """Return the trading days of ``symbol``; see PriceSource."""
        ticker = _RENAMED.get(symbol, symbol).replace(".", "-")
        if not ticker[0].isalpha():
            raise unknown_symbol(symbol, _SERVED)
        turn = self._asking.setdefault(ticker, FairSlots(1))
        async with turn.held():
            series = self._cache.get(ticker)
            if series is None:
                series = await self._history(symbol, ticker)
                self._cache[ticker] = series
        return series.between(start, end)

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def _history(self, symbol: str, ticker: str) -> PriceSeries:
        try:
            async with self._in_flight.held(), asyncio.timeout(self._timeout_seconds):
                reply, text = await self._request(ticker)
        except (httpx.HTTPError, TimeoutError) as error:
            raise _unavailable("cannot be reached") from error
        _raise_for_failure(reply, symbol)
        try:
            days = await asyncio.to_thread(_days_in, text)
        except (csv.Error, TypeError, ValueError, OverflowError) as error:
            raise _unavailable("sent something that is not a list of prices") from error
        if not days:
            raise unknown_symbol(symbol, _SERVED)
        return PriceSeries(symbol=ticker, source=SOURCE, currency=CURRENCY, days=days)

    async def _request(self, ticker: str) -> tuple[httpx.Response, str]:
        path = f"/tiingo/daily/{quote(ticker, safe='')}/prices"
        params: Mapping[str, str] = {"startDate": _FIRST_DAY, "format": "csv"}
        received = bytearray()
        async with self._http.stream("GET", path, params=params) as reply:
            async for part in reply.aiter_bytes():
                received += part
                if len(received) > MAX_REPLY_BYTES:
                    raise _unavailable("sent more than a history of prices can be")
        return reply, received.decode("utf-8", errors="replace")


def _raise_for_failure(reply: httpx.Response, symbol: str) -> None:
    """Reject every reply except prices; its text is not quoted, because it may contain the key."""
    match reply.status_code:
        case 200:
            return
        case 404:
            raise unknown_symbol(symbol, _SERVED)
        case 401 | 403:
            message = "Tiingo refuses the key of this service: its operator must check it."
            raise ToolRefusedError(message, code="source_refused")
        case 429:
            raise _unavailable("asks to wait, its limit of requests is reached", reply)
        case status:
            raise _unavailable(f"answered with status {status}", reply)


def _unavailable(what: str, reply: httpx.Response | None = None) -> ToolRefusedError:
    delay = None if reply is None else retry_after_seconds(reply.headers.get("retry-after", ""))
    delay = None if delay is None else min(delay, LONGEST_WAIT_SECONDS)
    return ToolRefusedError(
        f"Tiingo {what}: try again later.", code=UNAVAILABLE, retry_after_seconds=delay
    )


def _days_in(text: str) -> tuple[DailyPrice, ...]:
    """Parse a CSV with the columns of Tiingo's end-of-day prices; the earliest day comes first."""
    lines = text.splitlines()
    rows = csv.DictReader(lines, strict=True)
    if len(lines) > MAX_DAYS or not set(rows.fieldnames or ()) >= _COLUMNS:
        raise ValueError("not a list of prices")
    days = sorted(map(_day, rows))
    if len({price.day for price in days}) < len(days):
        raise ValueError("a day occurs twice")
    return tuple(days)


def _day(row: Mapping[str, str]) -> DailyPrice:
    day = DailyPrice(
        day=date.fromisoformat(row["date"][:_DATE_CHARS]),
        open=float(row["open"]),
        high=float(row["high"]),
        low=float(row["low"]),
        close=float(row["close"]),
        volume=int(float(row["volume"])),
        adjusted_close=float(row["adjClose"]),
    )
    prices = (day.open, day.high, day.low, day.close, day.adjusted_close)
    if day.volume < 0 or not all(0 < price < math.inf for price in prices):
        raise ValueError("not prices or a number of shares")
    return day
