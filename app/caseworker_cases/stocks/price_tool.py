"""The base class for tools that fetch prices, with their arguments and the configured source.

Invalid arguments and failures raise ``ToolRefusedError``. The message never quotes a source's
exception, because that may contain an API key.
"""

import re
from collections.abc import Mapping, Sequence
from datetime import date
from types import MappingProxyType
from typing import Any, Self

from caseworker.tools.arguments import CheckedTool, choice, day, text
from caseworker.tools.ports import ToolRefusedError, ToolSpec
from caseworker.tools.resources import ToolResources
from caseworker_cases.stocks.packaged import PackagedPrices
from caseworker_cases.stocks.prices import UNAVAILABLE, PriceSeries, PriceSource, spec_for_source

SYMBOL = text(60, "Ticker such as AAPL, or the company's name such as Apple")
START = day("First day, YYYY-MM-DD; without it the first day there is")
END = day("Last day, YYYY-MM-DD, included; without it the last day there is")
PRICE = choice(("adjusted", "raw"), "adjusted for splits and dividends (default), or raw as traded")

SYMBOLS: Mapping[str, str] = MappingProxyType(
    {
        "alphabet": "GOOG",
        "apple": "AAPL",
        "apple computer": "AAPL",
        "facebook": "FB",
        "google": "GOOG",
        "international business machines": "IBM",
        "meta": "FB",
        "meta platforms": "FB",
        "microsoft": "MSFT",
    }
)
"""Maps company names, in lowercase without the legal form, to ticker symbols."""

_LEGAL_FORM = re.compile(r"[,.]?\s+(?:inc|incorporated|corp|corporation|co|company|plc|ltd)\.?$")
_SYMBOL = re.compile(r"[A-Z0-9][A-Z0-9.\-^=]{0,14}")


def symbol_of(name: str) -> str:
    """Return the ticker symbol for a company name or ticker, in any case.

    A name that is not in the table is treated as a symbol, because a source may know it.

    Raises:
        ToolRefusedError: the text cannot be a symbol.
    """
    words = " ".join(name.lower().removeprefix("$").split())
    listed_symbol = SYMBOLS.get(_LEGAL_FORM.sub("", words))
    if listed_symbol is not None:
        return listed_symbol
    symbol = words.upper()
    if not _SYMBOL.fullmatch(symbol):
        raise ToolRefusedError(
            "a symbol must be a ticker such as AAPL, or a company's name such as Apple"
        )
    return symbol


def symbols_of(names: Sequence[str], minimum: int, maximum: int) -> list[str]:
    """Return the ticker symbols for several different companies.

    Raises:
        ToolRefusedError: there are fewer than ``minimum`` or more than ``maximum`` names, or a
            duplicate.
    """
    symbols = [symbol_of(name) for name in names]
    if len(set(symbols)) != len(symbols):
        raise ToolRefusedError("'symbols' names a company twice: name it once")
    if not minimum <= len(symbols) <= maximum:
        range_text = f"{minimum}" if minimum == maximum else f"{minimum} to {maximum}"
        raise ToolRefusedError(f"'symbols' must name {range_text} different companies")
    return symbols


def day_in(text: str) -> date:
    """Parse a date argument in the form YYYY-MM-DD.

    Raises:
        ToolRefusedError: the text is not a date in this form.
    """
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise ToolRefusedError("a date must be written YYYY-MM-DD") from error


async def fetched(source: PriceSource, symbol: str, args: Mapping[str, Any]) -> PriceSeries:
    """Fetch a symbol's prices between the arguments ``start`` and ``end``.

    Raises:
        ToolRefusedError: a date is invalid, ``start`` is after ``end``, or the source
            failed.
    """
    start, end = (day_in(args[name]) if name in args else None for name in ("start", "end"))
    if start is not None and end is not None and start > end:
        raise ToolRefusedError(f"'start' ({start}) must not be later than 'end' ({end})")
    try:
        return await source.daily(symbol, start, end)
    except ToolRefusedError:
        raise
    except Exception as error:
        raise ToolRefusedError(
            "The source of the prices failed: try again later.", code=UNAVAILABLE
        ) from error


def price_source(resources: ToolResources) -> PriceSource:
    """Return the price source that the settings section ``tools.prices`` names.

    Other sources are not imported.
    """
    settings = resources.settings.prices
    key = settings.api_key
    if settings.chosen_provider == "packaged" or key is None:
        return PackagedPrices()
    from caseworker_cases.stocks.tiingo import TiingoPrices

    return TiingoPrices(
        key.get_secret_value(),
        base_url=settings.base_url,
        timeout_seconds=settings.timeout_seconds,
    )


class PriceTool(CheckedTool):
    """Base class for tools that fetch prices; a tool's spec depends on the price source."""

    offer: ToolSpec
    """Spec of the tool for a price source that makes no external calls."""

    def __init__(self, source: PriceSource) -> None:
        self._source = source
        self.spec = spec_for_source(self.offer, source)
        super().__init__()

    @classmethod
    def of(cls, resources: ToolResources) -> Self:
        """Create the tool with the configured price source."""
        return cls(resources.shared(price_source))
