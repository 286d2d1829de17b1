"""Prices over HTTP: requests to the provider, and its failures."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from caseworker.tools.ports import ToolRefusedError
from caseworker_cases.stocks.tiingo import KEPT_SECONDS, TiingoPrices
from tests.support.fake_tiingo import FakeTiingo, Reply, prices_as_csv
from tests.support.manual_clock import ManualClock

KEY = "canary-7c1e0d9b2f"
A_YEAR = 365 * 24 * 3600
HEADER = "date,close,high,low,open,volume,adjClose\n"


@pytest.fixture
async def server() -> AsyncIterator[FakeTiingo]:
    """Yield a fake provider on loopback."""
    async with FakeTiingo() as running:
        yield running


@pytest.fixture
async def prices(server: FakeTiingo) -> AsyncIterator[TiingoPrices]:
    """Yield the source that calls the provider."""
    source = TiingoPrices(KEY, base_url=server.url, timeout_seconds=120)
    yield source
    await source.aclose()


async def refused(prices: TiingoPrices, symbol: str = "IBM") -> ToolRefusedError:
    """Request prices and return the error."""
    with pytest.raises(ToolRefusedError) as refusal:
        await prices.daily(symbol, None, None)
    assert KEY not in str(refusal.value)
    return refusal.value


async def test_the_key_goes_into_a_header_and_the_symbol_into_the_path(
    server: FakeTiingo, prices: TiingoPrices
) -> None:
    """A key in the URL would appear in logs on the way."""
    server.replies.append(Reply(body=prices_as_csv("IBM") or ""))

    await prices.daily("BRK.B", None, None)

    [request] = server.asked
    assert request.path == "/tiingo/daily/BRK-B/prices"
    assert request.query == {"startDate": "1960-01-01", "format": "csv"}
    assert request.headers["authorization"] == f"Token {KEY}"


async def test_a_share_that_was_renamed_is_asked_for_by_its_name_of_today(
    server: FakeTiingo, prices: TiingoPrices
) -> None:
    """The answer uses the current symbol too."""
    server.replies.append(Reply(body=prices_as_csv("FB") or ""))

    assert (await prices.daily("FB", None, None)).symbol == "META"


async def test_a_history_is_kept_for_a_while(server: FakeTiingo) -> None:
    """Fetching, computing and drawing make one request; later days appear in time."""
    clock = ManualClock()
    prices = TiingoPrices(
        KEY, base_url=server.url, timeout_seconds=120, timer=lambda: clock.now / 1000
    )

    for _ in range(3):
        await prices.daily("IBM", None, None)
    assert len(server.asked) == 1

    clock.advance(int(KEPT_SECONDS * 1000) + 1)
    await prices.daily("IBM", None, None)
    assert len(server.asked) == 2
    await prices.aclose()


async def test_askers_at_the_same_time_share_one_request(
    server: FakeTiingo, prices: TiingoPrices
) -> None:
    """Cancelling one caller does not affect the others."""
    server.replies.append(Reply(hang=True))
    async with asyncio.TaskGroup() as group:
        first = group.create_task(prices.daily("IBM", None, None))
        others = [group.create_task(prices.daily("IBM", None, None)) for _ in range(5)]
        await server.was_asked.wait()
        first.cancel()

    assert all(len(task.result().days) == 3270 for task in others)
    assert len(server.asked) == 2


@pytest.mark.req("002/13.5")
@pytest.mark.parametrize(
    ("reply", "code", "wait"),
    [
        (Reply(status=500, body=KEY), "source_unavailable", None),
        (Reply(status=429, headers={"retry-after": "7"}), "source_unavailable", 7),
        (Reply(status=429, headers={"retry-after": "soon"}), "source_unavailable", None),
        (Reply(status=429, headers={"retry-after": 400 * "9"}), "source_unavailable", A_YEAR),
        (
            Reply(status=429, headers={"retry-after": "Fri, 31 Dec 9999 23:59:59 -1200"}),
            "source_unavailable",
            A_YEAR,
        ),
        (
            Reply(status=503, headers={"retry-after": "Wed, 21 Oct 2015 07:28:00 GMT"}),
            "source_unavailable",
            0,
        ),
        (Reply(status=401, body=f"Invalid token {KEY}"), "source_refused", None),
        (Reply(status=403), "source_refused", None),
        (
            Reply(status=302, headers={"location": "http://127.0.0.1:9/"}),
            "source_unavailable",
            None,
        ),
        (Reply(body=prices_as_csv("IBM") or "", cut=True), "source_unavailable", None),
        (Reply(body=""), "source_unavailable", None),
        (Reply(body=f"Error: the limit of {KEY} is reached"), "source_unavailable", None),
        (Reply(body='{"detail": "?"}'), "source_unavailable", None),
        (Reply(body=HEADER + "2012-01-03,0,1,1,1,5,1\n"), "source_unavailable", None),
        (Reply(body=HEADER + "2012-01-03,nan,1,1,1,5,1\n"), "source_unavailable", None),
        (Reply(body=HEADER + "2012-01-03,1,inf,1,1,5,1\n"), "source_unavailable", None),
        (Reply(body=HEADER + "2012-01-03,1,1,1,1,-5,1\n"), "source_unavailable", None),
        (Reply(body=HEADER + "2012-01-03,1,1\n"), "source_unavailable", None),
        (Reply(body=HEADER + 2 * "2012-01-03,1,1,1,1,5,1\n"), "source_unavailable", None),
        (Reply(body=HEADER + 40_000 * "\n"), "source_unavailable", None),
        (Reply(body=7_000_000 * "1"), "source_unavailable", None),
        (Reply(body=HEADER), "unknown_symbol", None),
        (Reply(status=404), "unknown_symbol", None),
    ],
)
async def test_whatever_is_no_history_is_a_refusal_that_says_nothing_of_the_reply(
    server: FakeTiingo, prices: TiingoPrices, reply: Reply, code: str, wait: float | None
) -> None:
    """The reply is not cached, so the next request is sent."""
    server.replies.append(reply)

    refusal = await refused(prices)

    assert (refusal.code, refusal.retry_after_seconds) == (code, wait)
    assert (await prices.daily("IBM", None, None)).days


async def test_a_provider_that_is_silent_or_away_is_unavailable(server: FakeTiingo) -> None:
    """The timeout covers the whole answer."""
    server.replies.append(Reply(hang=True))
    silent = TiingoPrices(KEY, base_url=server.url, timeout_seconds=0.05)
    away = TiingoPrices(KEY, base_url="http://127.0.0.1:9", timeout_seconds=120)

    for prices in (silent, away):
        assert (await refused(prices)).code == "source_unavailable"
        await prices.aclose()


async def test_later_columns_and_times_of_day_do_no_harm(
    server: FakeTiingo, prices: TiingoPrices
) -> None:
    """Days are sorted, whatever the order in the reply."""
    rows = ("2012-01-04T00:00:00.000Z,2,2,2,2,5.0,2,x\n", "2012-01-03,1,1,1,1,5,1,y\n")
    server.replies.append(Reply(body=HEADER.replace("\n", ",new\n") + "".join(rows)))

    series: Any = await prices.daily("IBM", None, None)

    assert [(price.day.day, price.close) for price in series.days] == [(3, 1.0), (4, 2.0)]
