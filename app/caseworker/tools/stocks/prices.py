"""Daily prices, and the port through which the tools get them."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from datetime import date
from operator import attrgetter
from typing import Final, NamedTuple, Protocol

from caseworker.tools.dates.calculation import weekday_name
from caseworker.tools.ports import ToolRefusedError, ToolSpec

UNAVAILABLE: Final = "source_unavailable"
"""The code of a source that may answer when it is asked again."""


class DailyPrice(NamedTuple):
    """What was traded on one day; prices are in the currency of their series."""

    day: date
    open: float
    high: float
    low: float
    close: float
    """As traded on that day."""
    volume: int
    """Shares."""
    adjusted_close: float
    """The close, adjusted for the splits and dividends that came later."""

    @property
    def adjustment(self) -> float:
        """What a price of that day is multiplied with to adjust it."""
        return self.adjusted_close / self.close


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceSeries:
    """The trading days of one symbol, the earliest first and at least one."""

    symbol: str
    source: str
    """Where the prices come from, as ``packaged: …`` or ``live: …``; every result repeats it."""
    currency: str
    """ISO 4217, such as USD."""
    days: tuple[DailyPrice, ...]

    @property
    def first(self) -> DailyPrice:
        """The earliest day."""
        return self.days[0]

    @property
    def last(self) -> DailyPrice:
        """The latest day."""
        return self.days[-1]

    def between(self, start: date | None, end: date | None) -> "PriceSeries":
        """Return the days from ``start`` to ``end``, both included; None is all there is.

        Raises:
            ToolRefusedError: they lie, at least in part, outside the series (``out_of_range``), or
                nothing was traded on them (``no_data``).
        """
        first, last = self.first.day, self.last.day
        start, end = start or first, end or last
        if start < first or end > last:
            raise ToolRefusedError(
                f"The prices of {self.symbol} cover {first} to {last}: choose start and end"
                " inside, or leave them out.",
                code="out_of_range",
            )
        begin = bisect_left(self.days, start, key=attrgetter("day"))
        stop = bisect_right(self.days, end, key=attrgetter("day"))
        if begin == stop:
            on = f"on {weekday_name(start)} {start}"
            raise ToolRefusedError(
                f"{self.symbol} was not traded"
                f" {on if start == end else f'from {start} to {end}'}; the nearest trading days are"
                f" {self.days[begin - 1].day} and {self.days[begin].day}.",
                code="no_data",
            )
        return replace(self, days=self.days[begin:stop])


class PriceSource(Protocol):
    """Where daily prices come from: the packaged set, or a provider that is asked by key.

    A source raises ToolRefusedError only; its message names no key.
    """

    @property
    def external(self) -> bool:
        """True when asking leaves this process."""
        ...

    async def daily(self, symbol: str, start: date | None, end: date | None) -> PriceSeries:
        """Return the trading days of ``symbol`` from ``start`` to ``end``, both included.

        Without ``start`` the series begins with the first day that the source knows, without
        ``end`` it ends with the last one. Prices are finite and above zero.

        Raises:
            ToolRefusedError: the symbol is unknown (``unknown_symbol``); the dates are not covered
                (``out_of_range``); nothing was traded on them (``no_data``); the source cannot be
                reached, or asks to wait (``source_unavailable``); it refuses the key
                (``source_refused``).
        """
        ...


def asking(spec: ToolSpec, source: PriceSource) -> ToolSpec:
    """Return the spec of a tool that asks ``source``: one outside may be tried again."""
    transient = frozenset({UNAVAILABLE} if source.external else ())
    deterministic = spec.deterministic and not source.external
    return replace(spec, external=source.external, transient=transient, deterministic=deterministic)


def unknown_symbol(symbol: str, there_are: str) -> ToolRefusedError:
    """Return the refusal of a symbol; ``there_are`` says for what there are prices."""
    return ToolRefusedError(
        f"There are no prices for {symbol[:20]!r}; there are prices for {there_are}.",
        code="unknown_symbol",
    )
