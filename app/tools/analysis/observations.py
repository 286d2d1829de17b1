"""What is analysed: numbers in order, often with their days."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any

from app.tools.stocks.refusal import StockRefusedError

TRADING_DAYS_A_YEAR = 252
DAYS_A_YEAR = 365.25
LEAST_POSITIVE = 1e-15
"""What is smaller counts as zero where a ratio is needed, so that no ratio overflows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observations:
    """Numbers in the order of time; all of them finite."""

    name: str
    """What they are, such as ``AAPL adjusted close``."""
    unit: str
    values: tuple[float, ...]
    days: tuple[date, ...] | None = None
    """The day of each value, strictly ascending; None if the days are not known."""

    def __len__(self) -> int:
        return len(self.values)

    def at(self, index: int) -> dict[str, Any]:
        """Return where a value stands: its date, or its position from 1."""
        if self.days is None:
            return {"position": index + 1}
        return {"date": self.days[index].isoformat()}

    def place(self, index: int) -> dict[str, Any]:
        """Return a value and where it stands."""
        return {**self.at(index), "value": self.values[index]}

    def positive(self) -> Sequence[float]:
        """Return the values, for what is defined only above zero.

        Raises:
            StockRefusedError: one of them is zero or less, or too small to divide by.
        """
        if min(self.values) < LEAST_POSITIVE:
            raise StockRefusedError(
                "Returns and drawdowns are defined for values above zero only; one of these is"
                " not. Use change, mean, median, min, max or trend.",
                code="undefined",
            )
        return self.values


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What a metric may be told besides the numbers."""

    window: int = 20
    """Observations in one moving average."""
    periods_per_year: int = TRADING_DAYS_A_YEAR
    """How many observations make a year."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a metric found."""

    value: float
    unit: str
    formula: str
    """The definition in words."""
    details: dict[str, Any]
    """JSON values besides the main one; percentages are in percent as well."""


def common(*series: Observations) -> tuple[Observations, ...]:
    """Return all of them on the days that all have; without days they must be of equal length.

    Raises:
        StockRefusedError: they cannot be paired.
    """
    days = [set(observed.days) for observed in series if observed.days is not None]
    if len(days) < len(series):
        lengths = [len(observed) for observed in series]
        if len(set(lengths)) > 1:
            raise StockRefusedError(
                f"The series must be of equal length, not {' and '.join(map(str, lengths))}.",
                code="invalid_arguments",
            )
        return series
    shared = tuple(sorted(set.intersection(*days)))
    return tuple(_on(observed, shared) for observed in series)


def _on(observed: Observations, days: tuple[date, ...]) -> Observations:
    known = dict(zip(observed.days or (), observed.values, strict=True))
    return Observations(
        name=observed.name,
        unit=observed.unit,
        values=tuple(known[day] for day in days),
        days=days,
    )
