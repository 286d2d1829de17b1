"""The tool data_fetch_stock."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caseworker_cases.tools.data_fetch_stock import DEFAULT_ROWS, FIELDS, MAX_ROWS, DataFetchStock
from tests.unit.tools.stock_support import PRICES, BrokenSource, context, csv_rows

TOOL = DataFetchStock(PRICES)


async def fetched(**args: Any) -> Any:
    """Run the tool and require plain JSON."""
    result = await TOOL.run(args, context())
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    return result


@pytest.mark.req("002/5.3")
async def test_a_year_of_prices_is_summed_up_over_every_day_and_names_its_source() -> None:
    """Rows are limited, omitted rows are counted, and the summary covers all days."""
    result = await fetched(symbol="Apple", start="2012-01-01", end="2012-12-31")

    rows = csv_rows("AAPL", "2012-01-01", "2012-12-31")
    prices = [float(row["Close"]) for row in rows]
    assert (result["symbol"], result["start"], result["end"]) == (
        "AAPL",
        "2012-01-03",
        "2012-12-31",
    )
    assert result["source"].startswith("packaged: ")
    assert (result["count"], result["rows_omitted"]) == (250, 250 - DEFAULT_ROWS)
    assert result["columns"] == ["date", "close", "adjusted_close"]
    assert [row[:2] for row in result["rows"]] == [
        [row["Date"], float(row["Close"])] for row in rows[-DEFAULT_ROWS:]
    ]
    assert result["summary"] == {
        "field": "close",
        "first": prices[0],
        "last": prices[-1],
        "min": min(prices),
        "min_date": rows[prices.index(min(prices))]["Date"],
        "max": max(prices),
        "max_date": rows[prices.index(max(prices))]["Date"],
        "mean": round(sum(prices) / 250, 4),
    }
    assert "note" in result


async def test_a_single_day_has_a_value() -> None:
    """The value is the first field, by default the close as traded."""
    close = await fetched(symbol="AAPL", start="2012-09-19", end="2012-09-19")
    volume = await fetched(
        symbol="AAPL", start="2012-09-19", end="2012-09-19", fields=["volume", "open"]
    )

    assert close["value"] == 702.1
    assert close["text"] == "AAPL, closing price on 2012-09-19: 702.10 USD"
    traded = int(csv_rows("AAPL", "2012-09-19", "2012-09-19")[0]["Volume"])
    assert volume["value"] == volume["rows"][0][1] == traded


async def test_rows_never_exceed_the_limit_and_none_is_hidden() -> None:
    """Shown and omitted rows add up to all rows."""
    result = await fetched(symbol="IBM", max_points=MAX_ROWS, fields=list(FIELDS))

    assert len(result["rows"]) == MAX_ROWS
    assert result["rows_omitted"] + MAX_ROWS == result["count"] == 3270
    assert len(json.dumps(result)) < 40_000
    assert "value" not in result


async def test_what_fits_is_shown_whole() -> None:
    """A result that shows all rows has no note."""
    result = await fetched(symbol="FB", max_points=200)

    assert (len(result["rows"]), result["rows_omitted"]) == (196, 0)
    assert "note" not in result


@pytest.mark.req("002/13.1")
@pytest.mark.parametrize(
    ("args", "code", "told"),
    [
        ({"symbol": "TSLA"}, "unknown_symbol", "MSFT"),
        ({"symbol": "FB", "start": "2012-01-01"}, "out_of_range", "2012-05-18"),
        ({"symbol": "FB", "end": "2025-01-01"}, "out_of_range", "2013-03-01"),
        ({"symbol": "IBM", "start": "2012-06-02", "end": "2012-06-03"}, "no_data", "2012-06-04"),
        (
            {"symbol": "IBM", "start": "2012-06-05", "end": "2012-06-03"},
            "invalid_arguments",
            "later",
        ),
        ({"symbol": "IBM", "start": "2012-W07-3"}, "invalid_arguments", "YYYY-MM-DD"),
        ({"symbol": "IBM", "start": "03/04/2012"}, "invalid_arguments", "YYYY-MM-DD"),
        ({"symbol": "IBM", "fields": ["price"]}, "invalid_arguments", "adjusted_close"),
        ({"symbol": "IBM", "fields": []}, "invalid_arguments", "fields"),
        ({"symbol": "IBM", "max_points": 401}, "invalid_arguments", "400"),
        ({"symbol": "IBM", "limit": 3}, "invalid_arguments", "limit"),
        ({"symbol": 7}, "invalid_arguments", "string"),
        ({"symbol": "../etc"}, "invalid_arguments", "ticker"),
        ({}, "invalid_arguments", "'symbol' is missing"),
    ],
)
async def test_a_failure_is_a_dict_that_says_what_to_ask(
    args: dict[str, Any], code: str, told: str
) -> None:
    """The error names the argument, the known symbols or the covered dates."""
    result = await fetched(**args)

    assert result["code"] == code
    assert told in result["error"]


@pytest.mark.req("002/13.1")
async def test_a_source_that_breaks_is_an_error_without_its_message() -> None:
    """A library's message may contain a key."""
    tool = DataFetchStock(BrokenSource())

    result = await tool.run({"symbol": "AAPL"}, context())

    assert result["code"] == "source_unavailable"
    assert "canary" not in json.dumps(result)
    assert tool.spec.external


@pytest.mark.req("002/5.5")
@given(
    args=st.dictionaries(
        st.sampled_from(["symbol", "start", "end", "fields", "max_points", "strange"]),
        st.none()
        | st.booleans()
        | st.floats()
        | st.text(max_size=12)
        | st.just("AAPL")
        | st.lists(st.sampled_from([*FIELDS, 7]), max_size=3)
        | st.just("2012-01-03"),
    )
)
async def test_no_arguments_make_it_raise(args: dict[str, Any]) -> None:
    """Any arguments give prices or an error."""
    result = await TOOL.run(args, context())

    assert ("rows" in result) != ("error" in result)
