"""The arguments of the stock tools, read."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

from app.tools.stocks.companies import symbol_of
from app.tools.stocks.prices import PriceSeries, PriceSource
from app.tools.stocks.refusal import StockRefusedError, unfit

SYMBOL: Final[Mapping[str, Any]] = {
    "type": "string",
    "minLength": 1,
    "maxLength": 60,
    "description": "Ticker such as AAPL, or the company's name such as Apple",
}
START: Final[Mapping[str, Any]] = {
    "type": "string",
    "format": "date",
    "description": "First day, YYYY-MM-DD; without it the first day there is",
}
END: Final[Mapping[str, Any]] = {
    "type": "string",
    "format": "date",
    "description": "Last day, YYYY-MM-DD, included; without it the last day there is",
}


@dataclass(frozen=True, slots=True)
class Inputs:
    """Typed access to arguments; every method raises StockRefusedError for what it cannot use."""

    args: Mapping[str, Any]

    def has(self, name: str) -> bool:
        """Tell whether the argument was given."""
        return name in self.args

    def only(self, *names: str) -> None:
        """Refuse arguments other than ``names``."""
        if unused := sorted(str(name) for name in self.args if name not in names):
            raise unfit(f"{', '.join(unused)[:80]} cannot be used here: leave it out")

    def symbol(self) -> str:
        """Return the symbol that the argument ``symbol`` names."""
        return _symbol(self.args.get("symbol"), "'symbol'")

    def symbols(self, least: int, most: int) -> list[str]:
        """Return the different symbols that the argument ``symbols`` names."""
        named = self.args.get("symbols")
        if not isinstance(named, Sequence) or isinstance(named, str):
            raise unfit("'symbols' must be a list of tickers")
        symbols = [_symbol(name, "each of 'symbols'") for name in named[: most + 1]]
        if len(set(symbols)) != len(symbols):
            raise unfit("'symbols' names a company twice: name it once")
        if not least <= len(symbols) <= most:
            asked = f"{least}" if least == most else f"{least} to {most}"
            raise unfit(f"'symbols' must name {asked} different companies")
        return symbols

    def choice(self, name: str, options: Sequence[str], default: str) -> str:
        """Return which of ``options`` the argument chooses."""
        chosen = self.args.get(name, default)
        if not isinstance(chosen, str) or chosen not in options:
            raise unfit(f"'{name}' must be one of {', '.join(options)}")
        return chosen

    def whole(self, name: str, lowest: int, highest: int, default: int) -> int:
        """Return a whole number; JSON knows no difference between 2 and 2.0."""
        value = self.args.get(name, default)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
            raise unfit(f"'{name}' must be a whole number from {lowest} to {highest}")
        return value

    def period(self) -> tuple[date | None, date | None]:
        """Return the first and the last day that were asked for."""
        start, end = self._day("start"), self._day("end")
        if start is not None and end is not None and start > end:
            raise unfit(f"'start' ({start}) must not be later than 'end' ({end})")
        return start, end

    def _day(self, name: str) -> date | None:
        if not self.has(name):
            return None
        return day_in(self.args[name], f"'{name}'")


def day_in(value: object, place: str) -> date:
    """Return the day that an ISO date names.

    Raises:
        StockRefusedError: it is none; the message names ``place``.
    """
    try:
        day = date.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        day = None
    if day is not None and day.isoformat() == value:  # not 2012-W07-3, which is read as well
        return day
    raise unfit(f"{place} must be a date written YYYY-MM-DD")


def _symbol(name: object, place: str) -> str:
    symbol = symbol_of(name) if isinstance(name, str) else None
    if symbol is None:
        raise unfit(f"{place} must be a ticker such as AAPL, or a company's name such as Apple")
    return symbol


async def fetched(
    source: PriceSource, symbol: str, period: tuple[date | None, date | None]
) -> PriceSeries:
    """Ask the source for prices.

    Raises:
        StockRefusedError: it has none, or broke; what broke is not told, it may hold a key.
    """
    try:
        return await source.daily(symbol, *period)
    except StockRefusedError:
        raise
    except Exception as error:
        raise StockRefusedError(
            "The source of the prices failed: try again later.", code="source_unavailable"
        ) from error
