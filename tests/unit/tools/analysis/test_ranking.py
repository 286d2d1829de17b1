"""Comparing stocks by one metric, checked against plain arithmetic on the file."""

import json
from typing import Any

import pytest

from caseworker.tools.ports import ToolRefusedError
from caseworker_cases.agent.evidence import finding
from caseworker_cases.tools.analysis.metrics import METRICS, Options
from caseworker_cases.tools.analysis.observations import Observations
from caseworker_cases.tools.numeric_analysis import HIGHEST, NumericAnalysis, ranked
from tests.unit.tools.stock_support import PRICES, BrokenSource, closes, context, csv_rows

TOOL = NumericAnalysis(PRICES)
YEAR = {"start": "2011-01-01", "end": "2011-12-31"}
ALL = ["AAPL", "GOOG", "IBM", "MSFT"]


async def compared(metric: str, symbols: list[str], **args: Any) -> Any:
    """Run the tool and require plain JSON."""
    result = await TOOL.run({"metric": metric, "symbols": symbols, **args}, context())
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    return result


def gained(symbol: str, start: str, end: str) -> float:
    """Return the percentage by which the last price exceeds the first."""
    prices = closes(symbol, start, end)
    return (prices[-1] - prices[0]) / prices[0] * 100


def fallen(symbol: str, start: str, end: str) -> float:
    """Return the deepest fall, computed from every pair of days."""
    prices = closes(symbol, start, end)
    return max(
        (high - low) / high * 100 for place, high in enumerate(prices) for low in prices[place:]
    )


@pytest.mark.req("002/5.3")
@pytest.mark.parametrize("which", ["highest", "lowest"])
@pytest.mark.parametrize(("metric", "oracle"), [("total_return", gained), ("max_drawdown", fallen)])
async def test_the_stock_that_comes_first_is_the_finding(
    metric: str, oracle: Any, which: str
) -> None:
    """The symbol is the finding; the ranking lists each stock's value in order."""
    result = await compared(metric, ALL, which=which, **YEAR)

    figures = {symbol: oracle(symbol, *YEAR.values()) for symbol in ALL}
    wanted = sorted(ALL, key=lambda symbol: figures[symbol], reverse=which == "highest")
    assert finding(result) == result["value"] == wanted[0]
    assert [one["symbol"] for one in result["ranking"]] == wanted
    assert [one["value"] for one in result["ranking"]] == pytest.approx(
        [figures[symbol] for symbol in wanted], abs=1e-4
    )
    assert (result["unit"], result["symbols"]) == ("percent", ALL)


async def test_the_highest_value_comes_first_unless_told_otherwise() -> None:
    """IBM gained a quarter in 2011, and Microsoft lost a little."""
    result = await compared("total_return", ["MSFT", "IBM"], decimals=1, **YEAR)

    assert (result["value"], result["which"]) == ("IBM", "highest")
    assert result["ranking"][0]["value"] == round(gained("IBM", *YEAR.values()), 1)


@pytest.mark.req("002/5.3")
@pytest.mark.parametrize("metric", METRICS)
async def test_every_metric_of_one_stock_compares_several(metric: str) -> None:
    """Each stock has the value that it has alone, in order of the values."""
    result = await compared(metric, ["AAPL", "IBM"], **YEAR)

    alone = {
        symbol: (await TOOL.run({"metric": metric, "symbol": symbol, **YEAR}, context()))["value"]
        for symbol in ("AAPL", "IBM")
    }
    assert {one["symbol"]: one["value"] for one in result["ranking"]} == alone
    assert result["value"] == max(alone, key=lambda symbol: alone[symbol])


@pytest.mark.req("002/5.3")
async def test_stocks_are_compared_over_the_same_days() -> None:
    """Facebook's prices start later, so Apple's count from the same day."""
    result = await compared("total_return", ["AAPL", "FB"])

    first = csv_rows("FB")[0]["Date"]
    figures = {one["symbol"]: one["value"] for one in result["ranking"]}
    assert result["start"] == first
    assert figures["AAPL"] == pytest.approx(gained("AAPL", first, "9"), abs=1e-4)


@pytest.mark.parametrize(
    ("args", "code", "told"),
    [
        ({"symbols": ["AAPL"]}, "invalid_arguments", "less than 2"),
        (
            {"symbols": ["AAPL", "IBM", "MSFT", "GOOG", "FB", "X"]},
            "invalid_arguments",
            "more than 5",
        ),
        ({"symbols": ["AAPL", "apple"]}, "invalid_arguments", "twice"),
        ({"symbols": ["AAPL", "IBM"], "which": "best"}, "invalid_arguments", "highest"),
        ({"symbols": ["AAPL", "IBM"], "symbol": "FB"}, "invalid_arguments", "symbol"),
        ({"symbols": ["AAPL", "IBM"], "values": [1]}, "invalid_arguments", "values"),
        ({"symbol": "AAPL", "which": "highest"}, "invalid_arguments", "which"),
        ({"symbols": ["AAPL", "TSLA"]}, "unknown_symbol", "TSLA"),
        (
            {"symbols": ["AAPL", "IBM"], "start": "2011-03-01", "end": "2011-03-01"},
            "too_few_points",
            "at least 2",
        ),
    ],
)
async def test_what_cannot_be_compared_is_refused(
    args: dict[str, Any], code: str, told: str
) -> None:
    """The error for an impossible comparison names valid requests."""
    result = await TOOL.run({"metric": "total_return", **args}, context())

    assert (result.get("code"), told in result.get("error", "")) == (code, True), result


async def test_a_source_that_breaks_breaks_the_comparison() -> None:
    """A failing source fails the comparison, because a partial one would look complete."""
    args = {"metric": "volatility", "symbols": ["AAPL", "IBM"]}

    assert (await NumericAnalysis(BrokenSource()).run(args, context()))["code"] == (
        "source_unavailable"
    )


OPTIONS = Options(window=20, periods_per_year=252)


def observed(symbol: str, *values: float, unit: str = "USD") -> Observations:
    """Return prices of a stock."""
    return Observations(name=symbol, unit=unit, values=values, symbol=symbol)


def test_two_that_are_equal_have_no_first() -> None:
    """A tie is not broken at random."""
    twins = observed("A", 1, 2), observed("B", 2, 4), observed("C", 2, 3)

    with pytest.raises(ToolRefusedError, match="A and B have the same total return"):
        ranked(METRICS["total_return"], OPTIONS, HIGHEST, *twins)


def test_prices_in_two_currencies_are_not_compared() -> None:
    """Prices in two currencies are not compared; their returns can be."""
    stocks = observed("A", 1, 2), observed("B", 1, 3, unit="EUR")

    assert ranked(METRICS["total_return"], OPTIONS, HIGHEST, *stocks)["value"] == "B"
    with pytest.raises(ToolRefusedError, match="EUR and USD"):
        ranked(METRICS["max"], OPTIONS, HIGHEST, *stocks)
