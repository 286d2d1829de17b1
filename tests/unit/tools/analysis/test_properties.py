"""Properties of metrics for any series of prices."""

import math
from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from caseworker.tools.ports import ToolRefusedError
from caseworker_cases.tools.analysis.metrics import (
    METRICS,
    Options,
    correlation_of_returns,
    deepest,
    drawdowns,
    log_returns,
    simple_returns,
)
from caseworker_cases.tools.analysis.observations import Observations, common
from caseworker_cases.tools.numeric_analysis import rounded_floats

PRICES = st.lists(st.floats(0.01, 1e6), min_size=4, max_size=40)
OPTIONS = Options(window=20, periods_per_year=252)
PERCENTAGES = [
    "total_return", "annualized_return", "daily_returns", "volatility", "max_drawdown",
    "best_day", "worst_day",
]  # fmt: skip


def observed(values: list[float]) -> Observations:
    """Return values on consecutive days."""
    days = tuple(date(2024, 1, 1) + timedelta(days=day) for day in range(len(values)))
    return Observations(name="prices", unit="USD", values=tuple(values), days=days)


@given(values=PRICES)
def test_a_drawdown_is_a_fraction_and_none_is_deeper(values: list[float]) -> None:
    """The value falls by that fraction from its peak to its trough."""
    fall, peak, trough = deepest(values)

    assert 0 <= fall < 1
    assert all(0 <= other <= fall for other in drawdowns(values))
    assert peak <= trough
    assert 1 - values[trough] / values[peak] == pytest.approx(fall)
    pairs = [
        1 - later / earlier for place, earlier in enumerate(values) for later in values[place:]
    ]
    assert fall == pytest.approx(max(pairs))


@pytest.mark.parametrize("metric", PERCENTAGES)
@given(values=PRICES, power=st.integers(-8, 8))
def test_a_percentage_does_not_depend_on_the_currency(
    metric: str, values: list[float], power: int
) -> None:
    """Prices scaled by a power of two, which rounds nothing, have the same returns."""
    try:
        before = METRICS[metric].compute(observed(values), OPTIONS)["value"]
    except OverflowError:
        return
    after = METRICS[metric].compute(observed([value * 2.0**power for value in values]), OPTIONS)

    assert after["value"] == before


@pytest.mark.parametrize("metric", ["mean", "median", "min", "max", "change", "trend"])
@given(values=PRICES, power=st.integers(-8, 8))
def test_an_amount_scales_with_the_currency(metric: str, values: list[float], power: int) -> None:
    """Twice the prices have twice the mean."""
    before = METRICS[metric].compute(observed(values), OPTIONS)["value"]
    after = METRICS[metric].compute(observed([value * 2.0**power for value in values]), OPTIONS)

    assert after["value"] == pytest.approx(before * 2.0**power, rel=1e-9, abs=1e-9)


@given(pairs=st.lists(st.tuples(st.floats(0.01, 1e6), st.floats(0.01, 1e6)), min_size=4))
def test_a_correlation_is_symmetric_and_between_minus_one_and_one(
    pairs: list[tuple[float, float]],
) -> None:
    """The order of the two series does not matter."""
    one, other = (observed(list(values)) for values in zip(*pairs, strict=True))
    try:
        there = correlation_of_returns(one, other)["value"]
    except ToolRefusedError:  # one series is constant
        return
    back = correlation_of_returns(other, one)["value"]

    assert -1 <= there <= 1
    assert back == pytest.approx(there, abs=1e-9)


@given(values=PRICES)
def test_returns_lead_from_the_first_value_to_the_last(values: list[float]) -> None:
    """Simple returns multiply, and log returns add up, to the total return."""
    total = values[-1] / values[0]

    assert math.prod(1 + step for step in simple_returns(values)) == pytest.approx(total)
    assert math.exp(sum(log_returns(values))) == pytest.approx(total)


def test_two_series_meet_on_their_common_days() -> None:
    """Values of two series are paired by their common days."""
    monday, tuesday, wednesday = (date(2024, 1, day) for day in (1, 2, 3))
    one = Observations(name="a", unit="USD", values=(1.0, 2.0), days=(monday, tuesday))
    other = Observations(name="b", unit="USD", values=(5.0, 6.0), days=(tuesday, wednesday))

    first, second = common(one, other)

    assert (first.days, first.values, second.values) == ((tuesday,), (2.0,), (5.0,))


@given(number=st.floats(allow_nan=False, allow_infinity=False), decimals=st.integers(0, 10))
def test_rounding_changes_a_number_by_half_a_place_at_most(number: float, decimals: int) -> None:
    """Very large numbers have no decimals to round."""
    shown = rounded_floats(number, decimals)

    assert abs(shown - number) <= 0.5000001 * 10.0**-decimals + abs(number) * 1e-15


@pytest.mark.parametrize(
    ("number", "shown"),
    [(30.579712345, 30.5797), (0.0000123456789, 1.23457e-05), (123456.789012, 123456.789)],
)
def test_without_a_wish_four_decimals_and_six_digits_are_kept(number: float, shown: float) -> None:
    """A small slope keeps its digits, and a price is not cut."""
    assert rounded_floats(number, None) == shown


@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_never_leaves(number: float) -> None:
    """Non-finite numbers deep inside a result are caught too."""
    with pytest.raises(ToolRefusedError):
        rounded_floats({"recent": [{"value": number}]}, None)
