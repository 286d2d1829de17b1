"""Daily prices, and the port through which tools fetch them."""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from datetime import date
from operator import attrgetter
from typing import Final, NamedTuple, Protocol

from caseworker.tools.ports import ToolRefusedError, ToolSpec
from caseworker_cases.tools.dates.calculation import weekday_name

UNAVAILABLE: Final = "source_unavailable"
"""The error code of a source that may respond on a later attempt."""


class DailyPrice(NamedTuple):
    """The trading data of one day; prices are in the currency of the series."""

    day: date
    open: float
    high: float
    low: float
    close: float
    """The unadjusted closing price of that day."""
    volume: int
    """Number of shares."""
    adjusted_close: float
    """The close, adjusted for later splits and dividends."""

    @property
    def adjustment(self) -> float:
        """The factor that adjusts a price of that day."""
        return self.adjusted_close / self.close


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceSeries:
    """The trading days of one symbol, at least one, in ascending order."""

    symbol: str
    source: str
    """The origin of the prices, as ``packaged: …`` or ``live: …``; every result repeats it."""
    currency: str
    """ISO 4217 code, such as USD."""
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
        """Return the days from ``start`` to ``end``, inclusive; None means no limit.

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
    """The source of daily prices: the packaged set, or a provider that needs a key.

    A source raises only ToolRefusedError; its message contains no key.
    """

    @property
    def external(self) -> bool:
        """True if a query leaves this process."""
        ...

    async def daily(self, symbol: str, start: date | None, end: date | None) -> PriceSeries:
        """Return the trading days of ``symbol`` from ``start`` to ``end``, both included.

        Without ``start`` the series begins with the first day that the source knows; without
        ``end`` it ends with the last one. Prices are finite and above zero.

        Raises:
            ToolRefusedError: the symbol is unknown (``unknown_symbol``); the dates are not covered
                (``out_of_range``); there is no trading day (``no_data``); the source is unreachable
                or rate-limits the caller (``source_unavailable``); it rejects the key
                (``source_refused``).
        """
        ...


def asking(spec: ToolSpec, source: PriceSource) -> ToolSpec:
    """Adapt a tool's spec; an external source makes it external, retryable, nondeterministic."""
    transient = frozenset({UNAVAILABLE} if source.external else ())
    deterministic = spec.deterministic and not source.external
    return replace(spec, external=source.external, transient=transient, deterministic=deterministic)


def unknown_symbol(symbol: str, there_are: str) -> ToolRefusedError:
    """Return the error for an unknown symbol; ``there_are`` lists the available ones."""
    return ToolRefusedError(
        f"There are no prices for {symbol[:20]!r}; there are prices for {there_are}.",
        code="unknown_symbol",
    )
