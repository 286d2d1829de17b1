"""The input for an analysis: an ordered series of numbers, often with days, and its source.

Unsuitable input raises ``ToolRefusedError``, here and in the metrics.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from itertools import pairwise
from typing import Any

from caseworker.tools.ports import ToolRefusedError
from caseworker_cases.stocks.price_tool import day_in, fetched
from caseworker_cases.stocks.prices import DailyPrice, PriceSeries, PriceSource

ADJUSTED_CLOSE = "adjusted_close"
FIELDS = ("close", "open", "high", "low", "volume", ADJUSTED_CLOSE)
MIN_POSITIVE = 1e-15
"""Minimum value that ratios accept. Smaller values are treated as zero, so that no ratio
overflows."""
SPLIT_RATIO = 1.2
"""Minimum ratio between the adjustment factors of two days that indicates a share split."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """A series of finite numbers in chronological order."""

    name: str
    """Description of the series, such as ``AAPL adjusted close``."""
    unit: str
    values: tuple[float, ...]
    days: tuple[date, ...] | None = None
    """Day of each value, strictly ascending; None if the days are not known."""
    source: str = "given values"
    symbol: str | None = None
    note: str | None = None
    """Note needed to interpret the numbers, such as about splits; None without a note."""

    def __len__(self) -> int:
        return len(self.values)

    def at(self, index: int) -> dict[str, Any]:
        """Return a value's date as a JSON object, or its one-based position if it has no date."""
        if self.days is None:
            return {"position": index + 1}
        return {"date": self.days[index].isoformat()}

    def place(self, index: int) -> dict[str, Any]:
        """Return a value together with its date or position, as a JSON object."""
        return {**self.at(index), "value": self.values[index]}

    def ends(self) -> dict[str, Any]:
        """Return the first and the last value with their dates or positions, as a JSON object."""
        return {"first": self.place(0), "last": self.place(len(self) - 1)}

    def positive(self) -> tuple[float, ...]:
        """Return the values; raise ToolRefusedError if any of them is not above zero."""
        if min(self.values) < MIN_POSITIVE:
            raise ToolRefusedError(
                "Returns and drawdowns are defined for values above zero only; one of these is"
                " not. Use change, mean, median, min, max or trend.",
                code="undefined",
            )
        return self.values

    def on(self, days: tuple[date, ...]) -> "Observations":
        """Return the series restricted to the given days."""
        value_of_day = dict(zip(self.days or (), self.values, strict=True))
        return replace(self, values=tuple(value_of_day[day] for day in days), days=days)


def common(*series: Observations) -> tuple[Observations, ...]:
    """Restrict all series to their common days. Series without days must have equal length.

    Raises:
        ToolRefusedError: series without days have different lengths.
    """
    days = [set(observed.days) for observed in series if observed.days is not None]
    if len(days) == len(series):
        shared = tuple(sorted(set.intersection(*days)))
        return tuple(observed.on(shared) for observed in series)
    lengths = [len(observed) for observed in series]
    if len(set(lengths)) > 1:
        raise ToolRefusedError(
            f"The series must be of equal length, not {' and '.join(map(str, lengths))}."
        )
    return series


async def priced(source: PriceSource, symbol: str, args: Mapping[str, Any]) -> Observations:
    """Fetch the prices or volumes that the tool arguments request."""
    field, adjusted = args.get("field", "close"), args.get("price", "adjusted") == "adjusted"
    if field == ADJUSTED_CLOSE:
        field, adjusted = "close", True
    series = await fetched(source, symbol, args)
    if field == "volume":
        name, unit, note = field, "shares", None
    elif adjusted:
        name, unit, note = f"adjusted {field}", series.currency, None
    else:
        name, unit, note = f"{field} as traded", series.currency, _split_note(series)
    return Observations(
        name=f"{symbol} {name}",
        unit=unit,
        values=tuple(_value(day, field, adjusted=adjusted) for day in series.days),
        days=tuple(day.day for day in series.days),
        source=series.source,
        symbol=symbol,
        note=note,
    )


def observations_in(args: Mapping[str, Any], name: str = "values") -> Observations:
    """Build the series from the numbers and dates in the tool arguments.

    Raises:
        ToolRefusedError: the dates do not match the values, or do not ascend.
    """
    numbers = tuple(float(value) for value in args[name])
    days = None
    if "dates" in args:
        days = tuple(day_in(day) for day in args["dates"])
        if len(days) != len(numbers):
            raise ToolRefusedError(
                f"'dates' must be a list with one date for each of the {len(numbers)} values"
            )
        if any(later <= earlier for earlier, later in pairwise(days)):
            raise ToolRefusedError("'dates' must ascend, each later than the one before")
    return Observations(name=name, unit="units of the values", values=numbers, days=days)


def _value(day: DailyPrice, field: str, *, adjusted: bool) -> float:
    if field == "volume":
        return float(day.volume)
    if field == "close" and adjusted:
        return day.adjusted_close
    price = float(getattr(day, field))
    return price * day.adjustment if adjusted else price


def _split_note(series: PriceSeries) -> str | None:
    """Return a note with the days on which traded prices jump because of a split, or None."""
    splits = [
        later.day.isoformat()
        for earlier, later in pairwise(series.days)
        if not 1 / SPLIT_RATIO < later.adjustment / earlier.adjustment < SPLIT_RATIO
    ]
    if not splits:
        return None
    return (
        f"Shares were split on {', '.join(splits)}: prices as traded jump there. Compare adjusted"
        " prices instead."
    )
