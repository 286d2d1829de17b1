"""The tool numeric_analysis on real prices, checked against numpy and plain Python."""

import json
import math
from datetime import date
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from caseworker_cases.tools.analysis.metrics import METRICS, NAMES
from caseworker_cases.tools.numeric_analysis import NumericAnalysis
from tests.unit.tools.stock_support import PRICES, BrokenSource, closes, context, csv_rows

TOOL = NumericAnalysis(PRICES)
YEAR = ("2012-01-01", "2012-12-31")


async def analysed(**args: Any) -> Any:
    """Run the tool and require plain JSON."""
    result = await TOOL.run(args, context())
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    return result


def oracle(metric: str, prices: list[float], days: list[date]) -> float:
    """Compute a metric with numpy."""
    values = np.array(prices)
    simple = values[1:] / values[:-1] - 1
    logs = np.diff(np.log(values))
    years = (days[-1] - days[0]).days / 365.25
    times = np.array([(day - days[0]).days for day in days]) / 365.25
    peaks = np.maximum.accumulate(values)
    return float(
        {
            "total_return": lambda: 100 * (values[-1] / values[0] - 1),
            "annualized_return": lambda: 100 * ((values[-1] / values[0]) ** (1 / years) - 1),
            "daily_returns": lambda: 100 * simple.mean(),
            "volatility": lambda: 100 * logs.std(ddof=1) * math.sqrt(252),
            "max_drawdown": lambda: 100 * (1 - values / peaks).max(),
            "moving_average": lambda: values[-20:].mean(),
            "trend": lambda: np.polyfit(times, values, 1)[0],
            "mean": lambda: values.mean(),
            "median": lambda: np.median(values),
            "standard_deviation": lambda: values.std(ddof=1),
            "min": lambda: values.min(),
            "max": lambda: values.max(),
            "change": lambda: values[-1] - values[0],
            "best_day": lambda: 100 * simple.max(),
            "worst_day": lambda: 100 * simple.min(),
        }[metric]()
    )


@pytest.mark.req("002/5.3")
@pytest.mark.parametrize("symbol", ["AAPL", "FB"])
@pytest.mark.parametrize("metric", METRICS)
async def test_every_metric_is_what_numpy_makes_of_the_same_rows(metric: str, symbol: str) -> None:
    """The metric uses adjusted closes over all available days."""
    result = await analysed(metric=metric, symbol=symbol, decimals=8)

    rows = csv_rows(symbol)
    days = [date.fromisoformat(row["Date"]) for row in rows]
    assert result["value"] == pytest.approx(
        oracle(metric, closes(symbol), days), rel=1e-9, abs=1e-8
    )
    assert result["observations"] == len(rows)
    assert (result["start"], result["end"]) == (rows[0]["Date"], rows[-1]["Date"])
    assert result["source"].startswith("packaged: ")
    assert result["unit"]
    assert result["formula"]


@pytest.mark.req("002/5.3")
async def test_correlation_is_of_returns_on_common_days() -> None:
    """Facebook's prices start later, so only the common days count."""
    result = await analysed(metric="correlation", symbols=["Apple", "FB"], decimals=8)

    apple = {row["Date"]: float(row["Adj Close"]) for row in csv_rows("AAPL")}
    other = {row["Date"]: float(row["Adj Close"]) for row in csv_rows("FB")}
    days = sorted(apple.keys() & other.keys())
    one, two = (np.array([prices[day] for day in days]) for prices in (apple, other))
    returns = one[1:] / one[:-1] - 1, two[1:] / two[:-1] - 1
    assert result["value"] == pytest.approx(np.corrcoef(*returns)[0, 1], abs=1e-8)
    assert (result["observations"], result["returns"]) == (len(days), len(days) - 1)
    assert result["symbols"] == ["AAPL", "FB"]


@pytest.mark.req("002/5.3")
async def test_the_words_of_a_result_can_be_read() -> None:
    """The text names the metric, symbol, days, rounded value and unit."""
    result = await analysed(
        metric="max_drawdown", symbol="AAPL", start=YEAR[0], end=YEAR[1], decimals=2
    )

    assert result["text"] == (
        "maximum drawdown of AAPL adjusted close from 2012-01-03 to 2012-12-31: 27.07 percent"
    )
    assert result["peak"] == {"date": "2012-09-19", "value": 90.61}
    assert result["trough"]["date"] == "2012-12-28"


@pytest.mark.parametrize(
    ("field", "price", "column"),
    [("close", "raw", "Close"), ("high", "raw", "High"), ("volume", "adjusted", "Volume")],
)
async def test_prices_as_traded_and_volumes_can_be_asked_for(
    field: str, price: str, column: str
) -> None:
    """The highest price equals a price in the file."""
    result = await analysed(
        metric="max", symbol="AAPL", start=YEAR[0], end=YEAR[1], field=field, price=price
    )

    rows = csv_rows("AAPL", *YEAR)
    highest = max(rows, key=lambda row: float(row[column]))
    assert (result["value"], result["date"]) == (float(highest[column]), highest["Date"])


async def test_an_adjusted_price_keeps_its_share_of_the_close() -> None:
    """Open, high and low are adjusted like the close of their day."""
    result = await analysed(metric="mean", symbol="AAPL", start=YEAR[0], end=YEAR[1], field="low")

    wanted = [
        float(row["Low"]) * float(row["Adj Close"]) / float(row["Close"])
        for row in csv_rows("AAPL", *YEAR)
    ]
    assert result["value"] == pytest.approx(float(np.mean(wanted)), abs=1e-4)


async def test_what_rises_when_the_other_falls_has_a_correlation_of_minus_one() -> None:
    """The given values are paired by position."""
    result = await analysed(
        metric="correlation", values=[1, 2, 1, 2, 1], other_values=[2, 1, 2, 1, 2]
    )

    assert (result["value"], result["observations"]) == (-1.0, 5)


async def test_a_split_inside_prices_as_traded_is_noted() -> None:
    """A return across the split would be meaningless; adjusted prices need no note."""
    period = {"start": "2005-02-01", "end": "2005-03-31"}

    raw = await analysed(metric="total_return", symbol="AAPL", price="raw", **period)
    adjusted = await analysed(metric="total_return", symbol="AAPL", **period)

    assert "2005-02-28" in raw["note"]
    assert "note" not in adjusted


async def test_own_values_are_analysed_like_prices() -> None:
    """Dates are used if given, otherwise positions."""
    dated = await analysed(
        metric="max_drawdown",
        values=[100, 120, 90, 130, 129],
        dates=["2024-01-01", "2024-01-02", "2024-01-03", "2024-01-04", "2024-01-05"],
    )
    steps = await analysed(metric="trend", values=[1, 3, 5, 7])
    average = await analysed(metric="moving_average", values=[1, 2, 3, 4], window=2)

    assert (dated["value"], dated["unit"]) == (25.0, "percent")
    assert (dated["peak"]["date"], dated["trough"]["date"]) == ("2024-01-02", "2024-01-03")
    assert (steps["value"], steps["r_squared"], steps["direction"]) == (2.0, 1.0, "rising")
    assert average["value"] == 3.5
    assert [at["value"] for at in average["recent"]] == [1.5, 2.5, 3.5]


async def test_halves_are_rounded_away_from_zero_when_decimals_are_asked_for() -> None:
    """Rounding is decimal and not that of binary fractions."""
    up = await analysed(metric="mean", values=[2.675], decimals=2)
    down = await analysed(metric="mean", values=[-0.5], decimals=0)
    zero = await analysed(metric="mean", values=[-0.001], decimals=2)

    assert [up["value"], down["value"], str(zero["value"])] == [2.68, -1.0, "0.0"]


@pytest.mark.req("002/13.1")
@pytest.mark.parametrize(
    ("args", "code", "told"),
    [
        ({"metric": "alpha", "symbol": "IBM"}, "invalid_arguments", "total_return"),
        ({"metric": "mean"}, "invalid_arguments", "'symbol' or 'values'"),
        ({"metric": "mean", "symbol": "IBM", "values": [1]}, "invalid_arguments", "either"),
        ({"metric": "mean", "symbol": "IBM", "window": 3}, "invalid_arguments", "window"),
        ({"metric": "mean", "values": [1], "price": "raw"}, "invalid_arguments", "price"),
        ({"metric": "mean", "values": []}, "invalid_arguments", "less than 1 item"),
        ({"metric": "mean", "values": [1, math.nan]}, "invalid_arguments", "JSON"),
        ({"metric": "mean", "values": [1, math.inf]}, "invalid_arguments", "JSON"),
        ({"metric": "mean", "values": [10**400]}, "invalid_arguments", "maximum"),
        ({"metric": "mean", "values": [True]}, "invalid_arguments", "type number"),
        ({"metric": "mean", "values": [0] * 5001}, "invalid_arguments", "5000"),
        ({"metric": "mean", "values": [1, 2], "dates": ["2024-01-01"]}, "invalid_arguments", "2"),
        (
            {"metric": "mean", "values": [1, 2], "dates": ["2024-01-02", "2024-01-02"]},
            "invalid_arguments",
            "ascend",
        ),
        ({"metric": "volatility", "values": [1, 2]}, "too_few_points", "at least 3"),
        ({"metric": "moving_average", "values": [1, 2]}, "too_few_points", "at least 20"),
        ({"metric": "total_return", "values": [0, 2]}, "undefined", "above zero"),
        ({"metric": "max_drawdown", "values": [1, -2]}, "undefined", "above zero"),
        (
            {
                "metric": "annualized_return",
                "values": [1, 1e15],
                "dates": ["2024-01-01", "2024-01-02"],
            },
            "too_large",
            "too far apart",
        ),
        ({"metric": "correlation", "symbols": ["AAPL", "apple"]}, "invalid_arguments", "twice"),
        ({"metric": "correlation", "symbols": ["AAPL"]}, "invalid_arguments", "2"),
        ({"metric": "correlation", "symbol": "AAPL"}, "invalid_arguments", "symbol"),
        (
            {"metric": "correlation", "values": [1, 2, 3], "other_values": [1, 2, 3]},
            "too_few_points",
            "at least 4",
        ),
        (
            {"metric": "correlation", "values": [1, 2, 3, 4], "other_values": [1, 2]},
            "invalid_arguments",
            "equal length",
        ),
        (
            {"metric": "correlation", "values": [1, 2, 4, 8], "other_values": [1, 3, 2, 5]},
            "undefined",
            "no correlation",
        ),
        ({"metric": "mean", "symbol": "TSLA"}, "unknown_symbol", "MSFT"),
        ({"metric": "mean", "symbol": "FB", "start": "2012-01-01"}, "out_of_range", "2012-05-18"),
        ({"metric": "mean", "values": [1], "decimals": 11}, "invalid_arguments", "10"),
    ],
)
async def test_a_failure_is_a_dict_that_says_what_to_ask(
    args: dict[str, Any], code: str, told: str
) -> None:
    """The error says how many points are needed, which values are invalid, or the choices."""
    result = await analysed(**args)

    assert (result.get("code"), told in result.get("error", "")) == (code, True), result


async def test_a_source_that_breaks_is_an_error_without_its_message() -> None:
    """A tool with a live source is marked as external."""
    tool = NumericAnalysis(BrokenSource())

    result = await tool.run({"metric": "mean", "symbol": "AAPL"}, context())

    assert result["code"] == "source_unavailable"
    assert tool.spec.external


@pytest.mark.req("002/5.5")
@given(
    metric=st.sampled_from(NAMES),
    values=st.lists(st.floats() | st.integers() | st.floats(0, 10), max_size=30),
    other=st.lists(st.floats(0, 10), max_size=30),
    options=st.dictionaries(
        st.sampled_from(["window", "periods_per_year", "decimals", "dates"]),
        st.integers(-2, 30) | st.text(max_size=3) | st.lists(st.dates().map(str), max_size=3),
        max_size=1,
    ),
)
async def test_no_numbers_make_it_raise_or_return_what_is_not_finite(
    metric: str, values: list[float], other: list[float], options: dict[str, Any]
) -> None:
    """Any list of numbers gives a finite value or an error."""
    second = {"other_values": other} if metric == "correlation" else {}

    result = await analysed(metric=metric, values=values, **second, **options)

    assert ("error" in result) != math.isfinite(result.get("value", math.nan))
