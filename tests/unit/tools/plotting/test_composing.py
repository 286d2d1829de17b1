"""The content of a picture: text, values, and candles of days, weeks and months."""

from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from caseworker_cases.stocks.prices import DailyPrice
from caseworker_cases.tools.plotting.composing import (
    MAX_TITLE_CHARS,
    PERIODS,
    Candle,
    ChartKind,
    Format,
    PlotRequest,
    candles_of,
    clean_title,
    composed,
    period_for,
)
from tests.unit.tools.stock_support import PRICES, closes, csv_rows

DAYS = [
    DailyPrice(date(2024, 1, 29), 10, 12, 9, 11, 100, 5.5),
    DailyPrice(date(2024, 1, 31), 11, 15, 10, 14, 100, 7),
    DailyPrice(date(2024, 2, 2), 14, 14, 8, 9, 100, 4.5),
    DailyPrice(date(2024, 2, 5), 9, 10, 7, 8, 100, 4),
]
DAILY, WEEKLY, MONTHLY = PERIODS


def test_a_week_opens_with_its_first_day_and_closes_with_its_last() -> None:
    """High and low cover all days of the week, also across the end of a month."""
    assert candles_of(DAYS, WEEKLY, adjusted=False) == [
        Candle(date(2024, 1, 31), 10, 15, 8, 9),
        Candle(date(2024, 2, 7), 9, 10, 7, 8),
    ]


def test_a_month_ends_inside_a_week() -> None:
    """Monthly candles split a week that spans two months."""
    assert candles_of(DAYS, MONTHLY, adjusted=False) == [
        Candle(date(2024, 1, 15), 10, 15, 9, 14),
        Candle(date(2024, 2, 15), 14, 14, 7, 8),
    ]


def test_adjusted_candles_keep_their_proportions() -> None:
    """All four prices of a day are multiplied by the same factor, here a half."""
    assert candles_of(DAYS[:1], DAILY, adjusted=True) == [Candle(date(2024, 1, 29), 5, 6, 4.5, 5.5)]


@pytest.mark.parametrize(
    ("last", "name"),
    [(date(2012, 6, 30), "daily"), (date(2014, 1, 1), "weekly"), (date(2020, 1, 1), "monthly")],
)
def test_the_longer_the_time_the_longer_a_candle(last: date, name: str) -> None:
    """The candles of a 790-pixel chart become longer with the period."""
    assert period_for(date(2012, 1, 1), last, 790).name == name


async def test_no_trading_is_lost_in_months() -> None:
    """The highest monthly price equals the highest daily price of the file."""
    series = await PRICES.daily("MSFT", None, None)

    candles = candles_of(series.days, MONTHLY, adjusted=False)

    assert max(candle.high for candle in candles) == max(
        float(row["High"]) for row in csv_rows("MSFT")
    )
    assert len(candles) == 13 * 12 + 1


def request(kind: ChartKind, **other: Any) -> PlotRequest:
    """Return the request for a picture of the default size."""
    usual = {"format": Format.PNG, "width": 900, "height": 500, "adjusted": True, "title": None}
    return PlotRequest(kind=kind, **{**usual, **other})


@pytest.mark.req("002/5.3")
async def test_several_symbols_are_compared_from_one_hundred() -> None:
    """Only common days are shown, whatever the prices."""
    series = [await PRICES.daily(symbol, None, None) for symbol in ("AAPL", "FB")]

    picture = composed(series, request(ChartKind.LINE))

    first, last = closes("FB")[0], closes("FB")[-1]
    assert picture.unit == "18 May 2012 = 100"
    assert [line.values[0] for line in picture.series] == [100, 100]
    assert picture.series[1].values[-1] == pytest.approx(100 * last / first)
    assert len(picture.days) == 196
    assert "AAPL, FB" in picture.title


async def test_a_drawdown_is_drawn_below_zero_in_percent() -> None:
    """The lowest point of the chart is the maximum drawdown."""
    series = await PRICES.daily("MSFT", None, None)

    picture = composed([series], request(ChartKind.DRAWDOWN))

    top, deepest = 0.0, 0.0
    for close in closes("MSFT"):
        top = max(top, close)
        deepest = min(deepest, 100 * (close / top - 1))
    assert min(picture.series[0].values) == pytest.approx(deepest)
    assert max(picture.series[0].values) == 0


async def test_a_caption_names_the_source_and_a_subtitle_the_days() -> None:
    """A shared picture still shows its source."""
    picture = composed(
        [await PRICES.daily("FB", None, None)], request(ChartKind.CANDLES, adjusted=False)
    )

    assert picture.caption.startswith("Source: Quandl WIKI daily prices")
    assert "18 May 2012" in picture.subtitle
    assert "1 Mar 2013" in picture.subtitle
    assert "weekly" in picture.subtitle
    assert picture.unit == "USD"


@pytest.mark.parametrize(
    ("kind", "adjusted", "title"),
    [
        (ChartKind.LINE, True, "IBM: adjusted closing price"),
        (ChartKind.LINE, False, "IBM: closing price"),
        (ChartKind.DRAWDOWN, True, "IBM: drawdown"),
    ],
)
async def test_a_title_tells_an_adjusted_price_from_the_one_of_the_day(
    kind: ChartKind, adjusted: bool, title: str
) -> None:
    """The two prices can differ by a large factor."""
    series = await PRICES.daily("IBM", None, None)

    assert composed([series], replace(request(kind), adjusted=adjusted)).title == title


@pytest.mark.parametrize(
    ("title", "clean"),
    [
        ("  Apple\n in\t2012 ", "Apple in 2012"),
        ("a\x00b\x1b[31mc", "a b [31mc"),
        ("\N{RIGHT-TO-LEFT OVERRIDE}evil", "evil"),
        ("\ud800x", "x"),
        ("x" * 500, "x" * MAX_TITLE_CHARS),
        ("\n", ""),
    ],
)
def test_a_title_is_one_line_of_visible_characters(title: str, clean: str) -> None:
    """Control, format and invalid characters are removed, and the length is limited."""
    assert clean_title(title) == clean
