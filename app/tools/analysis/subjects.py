"""What a question is about: prices of a symbol, or numbers that came with it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from app.tools.analysis.observations import Observations
from app.tools.stocks.inputs import Inputs, day_in, fetched
from app.tools.stocks.prices import DailyPrice, PriceSeries, PriceSource
from app.tools.stocks.refusal import unfit

FIELDS = ("close", "open", "high", "low", "volume")
PRICES = ("adjusted", "raw")
MAX_VALUES = 5000
MAX_VALUE = 1e15
SPLIT_RATIO = 1.2
"""From one day to the next the adjustment changes by this much only if shares were split."""


@dataclass(frozen=True, slots=True)
class Subject:
    """Observations, and where they come from."""

    observations: Observations
    source: str
    symbol: str | None = None
    note: str | None = None
    """What a reader must know to understand the numbers."""


async def priced(inputs: Inputs, symbol: str, source: PriceSource) -> Subject:
    """Fetch the prices (or volumes) that the arguments ask for.

    Raises:
        StockRefusedError: an argument cannot be used, or there are no such prices.
    """
    field = inputs.choice("field", FIELDS, "close")
    price = inputs.choice("price", PRICES, "adjusted")
    series = await fetched(source, symbol, inputs.period())
    observations = Observations(
        name=f"{symbol} {_named(field, price)}",
        unit="shares" if field == "volume" else series.currency,
        values=tuple(_value(day, field, adjusted=price == "adjusted") for day in series.days),
        days=tuple(day.day for day in series.days),
    )
    note = _split_note(series) if price == "raw" and field != "volume" else None
    return Subject(observations, series.source, symbol, note)


def given(inputs: Inputs, name: str = "values") -> Subject:
    """Return the numbers that came with the question.

    Raises:
        StockRefusedError: they are not numbers, too many, too large, or do not go with their dates.
    """
    numbers = _numbers(inputs.args.get(name), name)
    days = None
    if inputs.has("dates"):
        dates = inputs.args["dates"]
        if not isinstance(dates, Sequence) or isinstance(dates, str) or len(dates) != len(numbers):
            raise unfit(
                f"'dates' must be a list with one date for each of the {len(numbers)} values"
            )
        days = tuple(day_in(day, "each of 'dates'") for day in dates)
        if any(later <= earlier for earlier, later in pairwise(days)):
            raise unfit("'dates' must ascend, each later than the one before")
    observations = Observations(name=name, unit="units of the values", values=numbers, days=days)
    return Subject(observations, "given values")


def _numbers(values: object, name: str) -> tuple[float, ...]:
    if not isinstance(values, Sequence) or isinstance(values, str) or not values:
        raise unfit(f"'{name}' must be a list of numbers")
    if len(values) > MAX_VALUES:
        raise unfit(f"'{name}' may hold {MAX_VALUES:,} numbers")
    if not all(_is_number(value) for value in values):
        raise unfit(f"'{name}' must be numbers from {-MAX_VALUE:g} to {MAX_VALUE:g}")
    return tuple(float(value) for value in values)


def _is_number(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return -MAX_VALUE <= value <= MAX_VALUE and math.isfinite(value)


def _named(field: str, price: str) -> str:
    if field == "volume":
        return field
    return f"adjusted {field}" if price == "adjusted" else f"{field} as traded"


def _value(day: DailyPrice, field: str, *, adjusted: bool) -> float:
    if field == "volume":
        return float(day.volume)
    if field == "close" and adjusted:
        return day.adjusted_close
    price = float(getattr(day, field))
    return price * day.adjustment if adjusted else price


def _split_note(series: PriceSeries) -> str | None:
    """Name the days on which prices as traded jump because shares were split."""
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
