"""The tools' cross-checks accept correct results and reject wrong ones."""

from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caseworker.tools.ports import CrossChecked, ToolContext, ToolResult
from caseworker_cases.stocks.packaged import PackagedPrices
from caseworker_cases.tools.calculator import Calculator
from caseworker_cases.tools.calendar import Calendar
from caseworker_cases.tools.data_fetch_stock import DataFetchStock
from caseworker_cases.tools.numeric_analysis import NumericAnalysis
from caseworker_cases.tools.plotter import Plotter
from caseworker_cases.tools.respond import Respond
from tests.unit.tools.stock_support import BlankRenderer, MemorySink

CONTEXT = ToolContext(
    run_id="r",
    timezone="Asia/Tokyo",
    now=datetime(2025, 9, 8, 20, tzinfo=UTC),
    artifacts=MemorySink(),
)
PRICES = PackagedPrices()
TOOLS: Mapping[str, Any] = {
    "calculator": Calculator(),
    "calendar": Calendar(),
    "fetch": DataFetchStock(PRICES),
    "analysis": NumericAnalysis(PRICES),
    "plotter": Plotter(PRICES, BlankRenderer()),
}
YEAR = {"start": "2008-01-01", "end": "2008-12-31"}


async def agrees(name: str, args: Mapping[str, Any], **other: Any) -> bool | None:
    """Return the cross-check's verdict on a result; ``other`` replaces fields of the result."""
    result: ToolResult = await TOOLS[name].run(args, CONTEXT)
    assert "error" not in result, result
    found: bool | None = await TOOLS[name].agrees(args, {**result, **other}, CONTEXT)
    return found


@pytest.mark.req("002/5.1")
@pytest.mark.parametrize(
    "expression",
    [
        *("6 * 7", "17% * 2340", "123456789 * 987654321", "2^200", "100 / 3", "-8 * -7.5", "8!"),
        *("sqrt(144) + cbrt(27)", "round(22 / 7, 2)", "median(4, 8, 15, 16, 23, 42)", "7 // 2"),
        *("gcd(270, 192) + lcm(12, 18)", "ln(e) + log(8, 2) + log10(5)", "mod(1000, 7)", "2^0.5"),
        *("product(6, 7, 8) - max(1, 2)", "root(81, 4)", "abs(-3) + floor(2.5) + ceil(2.5)"),
    ],
)
async def test_expressions_agree_with_python_and_wrong_values_do_not(expression: str) -> None:
    """Integers must match exactly, other numbers to nine digits."""
    right = (await TOOLS["calculator"].run({"expression": expression}, CONTEXT))["value"]
    wrong = f"{right}1" if "." in right else str(int(right) + 1)

    assert await agrees("calculator", {"expression": expression}) is True
    if "." not in right:
        assert await agrees("calculator", {"expression": expression}, value=wrong) is False
    assert await agrees("calculator", {"expression": expression}, value="-0.12345") is False


@pytest.mark.parametrize(
    "expression", ["200! * 0.5", "round(0.5 * 5, 0)", "5.5 % 2", "10^308 * 1.5 * 10 / 10"]
)
async def test_what_floats_cannot_tell_is_left_open(expression: str) -> None:
    """Results too large, at a rounding midpoint, or near an integer quotient are undecided."""
    assert await agrees("calculator", {"expression": expression}) is None


_UNITS = st.sampled_from(["days", "weeks", "months", "years", "business_days"])
_DAYS = st.dates(min_value=date(1600, 1, 1), max_value=date(2400, 12, 31))


@pytest.mark.req("002/5.2")
@given(
    day=_DAYS, amount=st.integers(-400, 400), unit=_UNITS, sign=st.sampled_from(["add", "subtract"])
)
async def test_shifted_dates_agree_with_day_numbers(
    day: date, amount: int, unit: str, sign: str
) -> None:
    """All units and both directions are checked; a date off by one day is rejected."""
    args = {"operation": sign, "date": day.isoformat(), "amount": amount, "unit": unit}
    right = (await TOOLS["calendar"].run(args, CONTEXT))["value"]
    off = (date.fromisoformat(right) + timedelta(days=1)).isoformat()

    assert await agrees("calendar", args) is True
    assert await agrees("calendar", args, value=off) is False


@given(start=_DAYS, end=_DAYS, unit=st.sampled_from(["days", "weeks", "months", "years"]))
async def test_distances_agree_with_day_numbers(start: date, end: date, unit: str) -> None:
    """Whole units between the dates are checked, with their sign."""
    ends = {"date": start.isoformat(), "end_date": end.isoformat(), "unit": unit}

    assert await agrees("calendar", {"operation": "difference", **ends}) is True
    assert await agrees("calendar", {"operation": "until", **ends}) is True


@pytest.mark.parametrize(
    "args",
    [
        {"operation": "weekday", "date": "the 9th of November 1989"},
        {"operation": "weekday", "date": "25/12/2025"},
        {"operation": "weekday", "date": "March 3, 2024", "amount": 100, "unit": "days"},
        {"operation": "normalise", "date": "24.12.2025"},
        {"operation": "normalise", "date": "tomorrow"},
        {"operation": "leap_year", "year": 1900},
        {"operation": "days_in_year", "year": 2100},
        {"operation": "days_in_month", "year": 2024, "month": 12},
        {"operation": "end_of_month", "year": 2024, "month": 2},
        {"operation": "end_of_month", "date": "2024-11-08"},
        {"operation": "nth_weekday", "year": 2025, "month": 10, "weekday": "Tuesday", "nth": -1},
        {"operation": "weekday_after", "date": "2025-04-10", "weekday": "Thursday"},
        {"operation": "weekday_before", "date": "2025-04-10", "weekday": "Friday"},
        {"operation": "count_business_days", "date": "2025-04-10", "end_date": "2025-03-01"},
        {"operation": "today"},
        {"operation": "now", "timezone": "America/New_York"},
    ],
    ids=lambda args: " ".join(map(str, args.values())),
)
async def test_every_operation_on_dates_agrees_with_day_numbers(args: dict[str, Any]) -> None:
    """The cross-check of dates accepts every operation's value and rejects another one."""
    assert await agrees("calendar", args) is True
    wrong = {"iso": "2001-01-01T00:00:00+00:00"} if args["operation"] == "now" else {"value": "?"}
    assert await agrees("calendar", args, **wrong) is False


async def test_dates_that_the_other_reader_does_not_know_are_left_open() -> None:
    """Dates in other formats and exact times are undecided."""
    times = {"date": "2025-03-01T10:00", "end_date": "2025-03-02T10:00"}

    assert await agrees("calendar", {"operation": "elapsed", **times}) is None
    assert await agrees("calendar", {"operation": "weekday", "date": "2025-W10-1"}) is None


@pytest.mark.req("002/5.3")
@pytest.mark.parametrize(
    "metric",
    [
        *("total_return", "annualized_return", "volatility", "max_drawdown", "best_day"),
        *("worst_day", "daily_returns", "mean", "median", "standard_deviation", "min", "max"),
        "change",
    ],
)
@pytest.mark.parametrize("price", ["raw", "adjusted"])
async def test_figures_agree_with_other_formulas(metric: str, price: str) -> None:
    """One stock and several stocks are checked, rounded or not."""
    args = {"metric": metric, "symbol": "AAPL", "price": price, **YEAR}
    of_two = {"metric": metric, "symbols": ["AAPL", "MSFT"], "price": price, **YEAR}
    value = (await TOOLS["analysis"].run(args, CONTEXT))["value"]

    assert await agrees("analysis", args) is True
    assert await agrees("analysis", args | {"decimals": 2}) is True
    assert await agrees("analysis", args, value=value + 0.01 + abs(value) / 1000) is False
    assert await agrees("analysis", of_two) is True


async def test_a_correlation_agrees_with_sums_of_products() -> None:
    """Metrics without a second formula are undecided."""
    two = {"metric": "correlation", "symbols": ["IBM", "MSFT"], **YEAR, "decimals": 2}
    trend = {"metric": "trend", "symbol": "IBM", **YEAR}

    assert await agrees("analysis", two) is True
    assert await agrees("analysis", two, value=0.1) is False
    assert await agrees("analysis", trend) is None
    assert await agrees("analysis", {"metric": "mean", "values": [1, 2, 4.5]}) is True


async def test_fetched_days_and_pictures_agree_with_the_whole_series() -> None:
    """A day's price, a summary of days, and the data shown in a picture are checked."""
    day = {"symbol": "AAPL", "start": "2013-01-02", "end": "2013-01-02", "fields": ["close"]}
    drawn = {"kind": "line", "symbols": ["GOOG", "AAPL"], **YEAR}

    assert await agrees("fetch", day) is True
    assert await agrees("fetch", day, value=549.04) is False
    assert await agrees("fetch", {"symbol": "IBM", **YEAR}) is True
    assert await agrees("plotter", drawn) is True
    assert await agrees("plotter", drawn, end="2008-12-30") is False


def test_an_answer_in_words_has_no_other_way() -> None:
    """A tool without a cross-check has no verdict either."""
    assert not isinstance(Respond(), CrossChecked)
    assert all(isinstance(tool, CrossChecked) for tool in TOOLS.values())
