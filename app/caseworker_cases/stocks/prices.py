"""Daily prices, and the interface through which tools fetch them."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from datetime import date
from operator import attrgetter
from typing import Final, NamedTuple, Protocol

from caseworker.tools.ports import ToolRefusedError, ToolSpec
from caseworker_cases.tools.dates.calculation import weekday_name

UNAVAILABLE: Final = "source_unavailable"
"""Error code for a price source that is temporarily unavailable."""


class DailyPrice(NamedTuple):
    """The trading data of one day; prices are in the currency of the series."""

    day: date
    open: float
    high: float
    low: float
    close: float
    """Closing price of that day, not adjusted."""
    volume: int
    """Number of shares traded."""
    adjusted_close: float
    """Closing price, adjusted for later splits and dividends."""

    @property
    def adjustment(self) -> float:
        """Factor that converts a price of that day to an adjusted price."""
        return self.adjusted_close / self.close


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceSeries:
    """A symbol's trading days, at least one, in ascending order."""

    symbol: str
    source: str
    """Origin of the prices, as ``packaged: …`` or ``live: …``. Every result repeats it."""
    currency: str
    """ISO 4217 currency code, such as USD."""
    days: tuple[DailyPrice, ...]

    @property
    def first(self) -> DailyPrice:
        """The earliest trading day."""
        return self.days[0]

    @property
    def last(self) -> DailyPrice:
        """The latest trading day."""
        return self.days[-1]

    def between(self, start: date | None, end: date | None) -> "PriceSeries":
        """Return the series from ``start`` to ``end``, inclusive; None means no bound.

        Raises:
            ToolRefusedError: the range is partly outside the series (``out_of_range``) or has no
                trading day (``no_data``).
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
    """A source for daily prices: the packaged data, or a provider that needs an API key.

    A source raises only ToolRefusedError. The message never contains a key.
    """

    @property
    def external(self) -> bool:
        """Whether a query makes external calls."""
        ...

    async def daily(self, symbol: str, start: date | None, end: date | None) -> PriceSeries:
        """Return a symbol's trading days from ``start`` to ``end``, inclusive.

        Without ``start`` the series begins with the first day that the source knows; without
        ``end`` it ends with the last one. Prices are finite and above zero.

        Raises:
            ToolRefusedError: the error code gives the reason. ``unknown_symbol``: the symbol is
                unknown. ``out_of_range``: the dates are not covered. ``no_data``: the range has no
                trading day. ``source_unavailable``: the source is unreachable or rate-limits the
                caller. ``source_refused``: the source rejects the key.
        """
        ...


def spec_for_source(spec: ToolSpec, source: PriceSource) -> ToolSpec:
    """Return a tool's spec, adapted to its price source.

    With an external source, the tool is external, nondeterministic and retryable.
    """
    transient = frozenset({UNAVAILABLE} if source.external else ())
    deterministic = spec.deterministic and not source.external
    return replace(spec, external=source.external, transient=transient, deterministic=deterministic)


def unknown_symbol(symbol: str, there_are: str) -> ToolRefusedError:
    """Return the error for an unknown symbol; ``there_are`` lists the available ones."""
    return ToolRefusedError(
        f"There are no prices for {symbol[:20]!r}; there are prices for {there_are}.",
        code="unknown_symbol",
    )
