"""Candles of days, weeks or months, whichever can be told apart."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from itertools import groupby
from typing import NamedTuple

from app.tools.stocks.prices import DailyPrice

PIXELS_A_CANDLE = 4.5
"""Narrower ones cannot be told apart."""


class Candle(NamedTuple):
    """What was traded in one period."""

    day: date
    """The middle of the period."""
    open: float
    high: float
    low: float
    close: float


@dataclass(frozen=True, slots=True)
class Period:
    """A length of time that one candle stands for."""

    name: str
    width_days: float
    """Of the trading that a candle covers."""
    every_days: float
    """Calendar days from one candle to the next, on average."""
    key: Callable[[date], Hashable]
    middle: Callable[[date], date]


def _wednesday(day: date) -> date:
    return day - timedelta(days=day.weekday() - 2)


PERIODS = (
    Period("daily", 1.0, 1.45, lambda day: day, lambda day: day),
    Period("weekly", 6.0, 7.0, _wednesday, _wednesday),
    Period(
        "monthly", 28.0, 30.44, lambda day: (day.year, day.month), lambda day: day.replace(day=15)
    ),
)


def period_for(first: date, last: date, pixels: float) -> Period:
    """Return the shortest period whose candles can be told apart on so many pixels."""
    most = pixels / PIXELS_A_CANDLE
    span = (last - first).days + 1
    return next((period for period in PERIODS if span / period.every_days <= most), PERIODS[-1])


def candles_of(days: Sequence[DailyPrice], period: Period, *, adjusted: bool) -> list[Candle]:
    """Return the candles of trading days in order.

    Adjusted, all four prices of a day are multiplied with what adjusts its close.
    """
    return [
        _merged(list(part), period, adjusted)
        for _, part in groupby(days, key=lambda price: period.key(price.day))
    ]


def _merged(days: list[DailyPrice], period: Period, adjusted: bool) -> Candle:
    factors = [day.adjustment if adjusted else 1.0 for day in days]
    return Candle(
        period.middle(days[0].day),
        days[0].open * factors[0],
        max(day.high * factor for day, factor in zip(days, factors, strict=True)),
        min(day.low * factor for day, factor in zip(days, factors, strict=True)),
        days[-1].close * factors[-1],
    )
