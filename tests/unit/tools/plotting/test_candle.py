"""Candles of days, weeks and months."""

from datetime import date

import pytest

from app.tools.plotting.candle import PERIODS, Candle, candles_of, period_for
from app.tools.stocks.prices import DailyPrice
from tests.unit.tools.stock_support import PRICES, csv_rows

DAYS = [
    DailyPrice(date(2024, 1, 29), 10, 12, 9, 11, 100, 5.5),
    DailyPrice(date(2024, 1, 31), 11, 15, 10, 14, 100, 7),
    DailyPrice(date(2024, 2, 2), 14, 14, 8, 9, 100, 4.5),
    DailyPrice(date(2024, 2, 5), 9, 10, 7, 8, 100, 4),
]
DAILY, WEEKLY, MONTHLY = PERIODS


def test_a_week_opens_with_its_first_day_and_closes_with_its_last() -> None:
    """High and low are those of all its days, also where a month ends between them."""
    assert candles_of(DAYS, WEEKLY, adjusted=False) == [
        Candle(date(2024, 1, 31), 10, 15, 8, 9),
        Candle(date(2024, 2, 7), 9, 10, 7, 8),
    ]


def test_a_month_ends_inside_a_week() -> None:
    """The same days, put together differently."""
    assert candles_of(DAYS, MONTHLY, adjusted=False) == [
        Candle(date(2024, 1, 15), 10, 15, 9, 14),
        Candle(date(2024, 2, 15), 14, 14, 7, 8),
    ]


def test_adjusted_candles_keep_their_proportions() -> None:
    """All four prices of a day are multiplied with the same factor, here a half."""
    assert candles_of(DAYS[:1], DAILY, adjusted=True) == [Candle(date(2024, 1, 29), 5, 6, 4.5, 5.5)]


@pytest.mark.parametrize(
    ("last", "name"),
    [(date(2012, 6, 30), "daily"), (date(2014, 1, 1), "weekly"), (date(2020, 1, 1), "monthly")],
)
def test_the_longer_the_time_the_longer_a_candle(last: date, name: str) -> None:
    """On 790 pixels."""
    assert period_for(date(2012, 1, 1), last, 790).name == name


async def test_no_trading_is_lost_in_months() -> None:
    """The highest price of all months is the highest of all days, in the file too."""
    series = await PRICES.daily("MSFT", None, None)

    candles = candles_of(series.days, MONTHLY, adjusted=False)

    assert max(candle.high for candle in candles) == max(
        float(row["High"]) for row in csv_rows("MSFT")
    )
    assert len(candles) == 13 * 12 + 1
