"""Contract of the price sources that the stock tools use, tested on every source."""

from collections.abc import AsyncIterator
from datetime import date

import pytest

from caseworker.tools.ports import ToolRefusedError
from caseworker_cases.stocks.packaged import PackagedPrices
from caseworker_cases.stocks.prices import PriceSource
from caseworker_cases.stocks.tiingo import TiingoPrices
from tests.support.fake_tiingo import FakeTiingo


@pytest.fixture(params=["packaged", "tiingo"])
async def source(request: pytest.FixtureRequest) -> AsyncIterator[PriceSource]:
    """Return each source in turn; both have the same prices."""
    if request.param == "packaged":
        yield PackagedPrices()
        return
    async with FakeTiingo() as server:
        prices = TiingoPrices("a-key", base_url=server.url, timeout_seconds=120)
        yield prices
        await prices.aclose()


@pytest.mark.req("002/5.3")
async def test_a_period_has_both_its_ends_and_says_who_answered(source: PriceSource) -> None:
    """Closes as traded and adjusted closes are separate."""
    series = await source.daily("IBM", date(2012, 1, 3), date(2012, 1, 5))

    assert [price.day for price in series.days] == [date(2012, 1, day) for day in (3, 4, 5)]
    first = series.first
    assert (first.close, first.adjusted_close, first.volume) == (186.3, 157.57837143485, 5646000)
    assert first.low <= min(first.open, first.close) <= max(first.open, first.close) <= first.high
    assert series.currency == "USD"
    assert series.source.split(":")[0] in ("packaged", "live")


async def test_without_dates_everything_is_there(source: PriceSource) -> None:
    """The range runs from the first known day to the last, each day once."""
    series = await source.daily("AAPL", None, None)

    assert (series.first.day, series.last.day) == (date(2000, 3, 1), date(2013, 3, 1))
    assert len({price.day for price in series.days}) == len(series.days) == 3270


@pytest.mark.parametrize(
    ("symbol", "start", "end", "code", "told"),
    [
        ("TSLA", None, None, "unknown_symbol", "TSLA"),
        ("600000", None, None, "unknown_symbol", "600000"),
        ("MSFT", date(1980, 1, 1), None, "out_of_range", "2000-03-01 to 2013-03-01"),
        ("AAPL", None, date(2013, 3, 2), "out_of_range", "2000-03-01 to 2013-03-01"),
        ("AAPL", date(2012, 6, 2), date(2012, 6, 2), "no_data", "2012-06-01 and 2012-06-04"),
    ],
)
async def test_a_question_without_an_answer_is_told_what_to_ask(
    source: PriceSource, symbol: str, start: date | None, end: date | None, code: str, told: str
) -> None:
    """The error names the covered dates and the nearest trading days."""
    with pytest.raises(ToolRefusedError) as refused:
        await source.daily(symbol, start, end)

    assert refused.value.code == code
    assert told in str(refused.value)
