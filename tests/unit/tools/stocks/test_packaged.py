"""The prices that are packaged with the service."""

from datetime import date

import pytest

from caseworker.tools.ports import ToolRefusedError
from caseworker_cases.stocks.packaged import PackagedPrices
from tests.unit.tools.stock_support import PRICES, csv_rows

SYMBOLS = {"AAPL": 3270, "FB": 196, "GOOG": 2148, "IBM": 3270, "MSFT": 3270}


@pytest.mark.req("002/5.3")
@pytest.mark.parametrize("symbol", SYMBOLS)
async def test_every_row_is_the_one_of_the_file(symbol: str) -> None:
    """Closes as traded and adjusted closes are separate, and no day is missing."""
    series = await PRICES.daily(symbol, None, None)

    read = [
        (
            day.day.isoformat(),
            *map(float, (day.open, day.high, day.low, day.close, day.volume, day.adjusted_close)),
        )
        for day in series.days
    ]
    names = ("Open", "High", "Low", "Close", "Volume", "Adj Close")
    rows = [(row["Date"], *(float(row[name]) for name in names)) for row in csv_rows(symbol)]
    assert read == rows
    assert len(read) == SYMBOLS[symbol]
    assert series.source.startswith("packaged: ")


async def test_both_ends_of_a_period_are_included() -> None:
    """January 3 and 5 are trading days, and so is the day between them."""
    series = await PRICES.daily("IBM", date(2012, 1, 3), date(2012, 1, 5))

    assert [day.day.day for day in series.days] == [3, 4, 5]


async def test_the_file_is_read_once() -> None:
    """A second request gets the same list of days, because the file is read once."""
    prices = PackagedPrices()

    first = await prices.daily("FB", None, None)
    second = await prices.daily("FB", None, None)

    assert first.days[0] is second.days[0]


@pytest.mark.parametrize(
    ("symbol", "start", "end", "code", "told"),
    [
        ("TSLA", None, None, "unknown_symbol", "AAPL, FB, GOOG, IBM, MSFT"),
        ("FB", date(2012, 1, 1), None, "out_of_range", "2012-05-18 to 2013-03-01"),
        ("AAPL", None, date(2013, 3, 2), "out_of_range", "2000-03-01 to 2013-03-01"),
        ("AAPL", date(2012, 6, 2), date(2012, 6, 2), "no_data", "2012-06-01 and 2012-06-04"),
    ],
)
async def test_a_question_without_an_answer_is_told_what_to_ask(
    symbol: str, start: date | None, end: date | None, code: str, told: str
) -> None:
    """Known symbols, covered dates and the nearest trading days are named."""
    with pytest.raises(ToolRefusedError) as refused:
        await PRICES.daily(symbol, start, end)

    assert refused.value.code == code
    assert told in str(refused.value)
