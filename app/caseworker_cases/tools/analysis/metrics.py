"""All metrics by name, with the number of observations and the options that they need.

A return is a fraction in the functions here and a percentage in every ``Finding``.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from statistics import StatisticsError, correlation, fmean, linear_regression, median, stdev
from types import MappingProxyType
from typing import Any

from caseworker.tools.ports import ToolRefusedError
from caseworker_cases.tools.analysis.observations import Observations

TRADING_DAYS_A_YEAR = 252
DAYS_A_YEAR = 365.25
RECENT = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Options for a metric: the number of observations in a moving average, and in a year."""

    window: int
    periods_per_year: int


Finding = dict[str, Any]
"""A metric's ``value`` with its ``unit``, its ``formula`` in words, and further JSON values."""


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric for one series, with its minimum number of observations and its options."""

    words: str
    """The metric's name as it appears within a sentence."""
    min_observations: int
    compute: Callable[[Observations, Options], Finding]
    uses: frozenset[str] = frozenset()


def simple_returns(values: Sequence[float]) -> list[float]:
    """Return ``value / previous value - 1`` for every value but the first."""
    return [later / earlier - 1 for earlier, later in pairwise(values)]


def log_returns(values: Sequence[float]) -> list[float]:
    """Return ``ln(value / previous value)`` for every value but the first."""
    return [math.log(later / earlier) for earlier, later in pairwise(values)]


def drawdowns(values: Sequence[float]) -> list[float]:
    """Return ``1 - value / highest value so far`` for every value.

    Values must be above zero. A drawdown is at least 0 and below 1.
    """
    return [1 - value / peak for value, peak in zip(values, accumulate(values, max), strict=True)]


def deepest(values: Sequence[float]) -> tuple[float, int, int]:
    """Return the largest drawdown as a fraction, and the indexes of its peak and its trough.

    The trough is the first index with that drawdown. The peak is the last index of the highest
    value before it. Values that never fall have a drawdown of 0, with peak and trough at index 0.
    """
    falls = drawdowns(values)
    trough = falls.index(max(falls))
    top = max(values[: trough + 1])
    peak = max(place for place in range(trough + 1) if values[place] == top)
    return falls[trough], peak, trough


def _percent(fraction: float, formula: str, **details: Any) -> Finding:
    return {"value": 100 * fraction, "unit": "percent", "formula": formula, **details}


def _level(observed: Observations, value: float, formula: str, **details: Any) -> Finding:
    return {"value": value, "unit": observed.unit, "formula": formula, **details}


def _total_return(observed: Observations, options: Options) -> Finding:
    values = observed.positive()
    return _percent(values[-1] / values[0] - 1, "last / first - 1", **observed.ends())


def _annualized_return(observed: Observations, options: Options) -> Finding:
    values = observed.positive()
    if observed.days is None:
        years = (len(values) - 1) / options.periods_per_year
        steps = f"steps / {options.periods_per_year}"
    else:
        years = (observed.days[-1] - observed.days[0]).days / DAYS_A_YEAR
        steps = "calendar days / 365.25"
    details: dict[str, Any] = {"years": years, **observed.ends()}
    if years < 1:
        details["note"] = "The period is shorter than a year: annualising magnifies its return."
    growth = (values[-1] / values[0]) ** (1 / years) - 1
    return _percent(growth, f"(last / first) ^ (1 / years) - 1, years = {steps}", **details)


def _volatility(observed: Observations, options: Options) -> Finding:
    step = stdev(log_returns(observed.positive()))
    periods = options.periods_per_year
    return _percent(
        step * math.sqrt(periods),
        "the sample standard deviation (n - 1) of ln(value / previous value)"
        f" * sqrt({periods}), annualised",
        per_period=100 * step,
        returns=len(observed) - 1,
    )


def _daily_returns(observed: Observations, options: Options) -> Finding:
    returns = simple_returns(observed.positive())

    def extreme(daily_return: float) -> dict[str, Any]:
        return {**observed.at(returns.index(daily_return) + 1), "value": 100 * daily_return}

    return _percent(
        fmean(returns),
        "the mean of value / previous value - 1",
        returns=len(returns),
        median=100 * median(returns),
        standard_deviation=100 * stdev(returns),
        best=extreme(max(returns)),
        worst=extreme(min(returns)),
        positive=sum(change > 0 for change in returns),
        negative=sum(change < 0 for change in returns),
        unchanged=returns.count(0),
    )


def _extreme_day(
    choose: Callable[[Sequence[float]], float], word: str
) -> Callable[[Observations, Options], Finding]:
    """Return the metric of the largest or smallest simple return, with its first day."""

    def compute(observed: Observations, options: Options) -> Finding:
        returns = simple_returns(observed.positive())
        extreme = choose(returns)
        index = returns.index(extreme) + 1
        return _percent(
            extreme,
            f"the {word} value / previous value - 1",
            **observed.at(index),
            previous=observed.place(index - 1),
            last=observed.place(index),
        )

    return compute


def _max_drawdown(observed: Observations, options: Options) -> Finding:
    fall, peak, trough = deepest(observed.positive())
    details: dict[str, Any] = {"note": "The values never fell below an earlier one."}
    if fall > 0:
        details = {"peak": observed.place(peak), "trough": observed.place(trough)}
    return _percent(fall, "the largest 1 - value / highest value so far", **details)


def _moving_average(observed: Observations, options: Options) -> Finding:
    """Return the mean of the latest ``window`` values, and the most recent earlier means."""
    window, values = options.window, observed.values
    ends = range(max(window, len(values) - RECENT + 1), len(values) + 1)
    recent = [{**observed.at(end - 1), "value": fmean(values[end - window : end])} for end in ends]
    return _level(
        observed,
        fmean(values[-window:]),
        f"the mean of the latest {window} values (simple moving average)",
        window=window,
        last_value=values[-1],
        recent=recent,
    )


def _statistic(
    compute: Callable[[Sequence[float]], float], formula: str
) -> Callable[[Observations, Options], Finding]:
    return lambda observed, _: _level(observed, compute(observed.values), formula)


def _extreme(
    choose: Callable[[Sequence[float]], float], word: str
) -> Callable[[Observations, Options], Finding]:
    """Return the metric of the smallest or largest value, with its first position."""

    def compute(observed: Observations, options: Options) -> Finding:
        value = choose(observed.values)
        place = observed.at(observed.values.index(value))
        return _level(observed, value, f"the {word} value", **place)

    return compute


def _change(observed: Observations, options: Options) -> Finding:
    change = observed.values[-1] - observed.values[0]
    return _level(observed, change, "the last value - the first value", **observed.ends())


def _trend(observed: Observations, options: Options) -> Finding:
    """Return the slope of the least-squares line and its r squared.

    Time is in calendar days from the first one, and the main value is the slope per year of 365.25
    days. If the days are unknown, time is counted in steps and the slope is per step.
    """
    details: dict[str, Any] = {}
    if observed.days is None:
        times = [float(step) for step in range(len(observed))]
        line = linear_regression(times, observed.values)
        slope, step_name = line.slope, "step"
    else:
        times = [float((day - observed.days[0]).days) for day in observed.days]
        line = linear_regression(times, observed.values)
        slope, step_name = line.slope * DAYS_A_YEAR, "year"
        details["slope_per_day"] = line.slope
    details |= {
        "fitted_first": line.intercept,
        "fitted_last": line.intercept + line.slope * times[-1],
        "r_squared": _r_squared(times, observed.values),
        "direction": "rising" if line.slope > 0 else "falling" if line.slope < 0 else "flat",
    }
    return {
        "value": slope,
        "unit": f"{observed.unit} per {step_name}",
        "formula": f"the slope of the least squares line through the values, per {step_name}",
        **details,
    }


def _r_squared(times: Sequence[float], values: Sequence[float]) -> float | None:
    """Return the share of the variance that the line explains; None for zero variance."""
    try:
        return correlation(times, values) ** 2
    except StatisticsError:
        return None


def correlation_of_returns(one: Observations, other: Observations) -> Finding:
    """Return Pearson's correlation between two series' simple returns on their common days.

    Raises:
        ToolRefusedError: all returns of a series are equal, so that no correlation is
            defined.
    """
    returns = simple_returns(one.positive()), simple_returns(other.positive())
    try:
        coefficient = correlation(*returns)
    except StatisticsError as error:
        raise ToolRefusedError(
            "One of the two series has the same return every time: no correlation is defined.",
            code="undefined",
        ) from error
    return {
        "value": max(-1.0, min(1.0, coefficient)),  # rounding may exceed the range slightly
        "unit": "coefficient",
        "formula": "Pearson's correlation of value / previous value - 1 of both, from -1 to 1",
        "returns": len(returns[0]),
    }


_YEARLY = frozenset({"periods_per_year"})
METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        "total_return": Metric("total return", 2, _total_return),
        "annualized_return": Metric("annualised return", 2, _annualized_return, _YEARLY),
        "daily_returns": Metric("mean daily return", 3, _daily_returns),
        "volatility": Metric("annualised volatility", 3, _volatility, _YEARLY),
        "max_drawdown": Metric("maximum drawdown", 2, _max_drawdown),
        "moving_average": Metric("moving average", 1, _moving_average, frozenset({"window"})),
        "trend": Metric("trend", 3, _trend),
        "mean": Metric("mean", 1, _statistic(fmean, "the sum of the values / their number")),
        "median": Metric(
            "median",
            1,
            _statistic(median, "the middle value, or the mean of the two middle values"),
        ),
        "standard_deviation": Metric(
            "standard deviation",
            2,
            _statistic(stdev, "the sample standard deviation of the values (divided by n - 1)"),
        ),
        "min": Metric("minimum", 1, _extreme(min, "smallest")),
        "max": Metric("maximum", 1, _extreme(max, "largest")),
        "change": Metric("change", 2, _change),
        "best_day": Metric("best day", 2, _extreme_day(max, "largest")),
        "worst_day": Metric("worst day", 2, _extreme_day(min, "smallest")),
    }
)
"""The metrics for a single series, keyed by name; ``correlation`` takes two series."""

CORRELATION = "correlation"
MIN_FOR_CORRELATION = 4
"""Minimum number of common observations. Fewer than three returns always correlate perfectly."""
NAMES = (*METRICS, CORRELATION)
