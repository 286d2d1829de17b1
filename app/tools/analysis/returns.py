"""Metrics of returns. A return is a fraction in the functions here and percent in every Finding."""

import math
from collections.abc import Sequence
from itertools import pairwise
from statistics import fmean, median, stdev
from typing import Any

from app.tools.analysis.observations import DAYS_A_YEAR, Finding, Observations, Options

PERCENT = "percent"


def simple_returns(values: Sequence[float]) -> list[float]:
    """Return value / previous value - 1 for every value but the first."""
    return [later / earlier - 1 for earlier, later in pairwise(values)]


def log_returns(values: Sequence[float]) -> list[float]:
    """Return ln(value / previous value) for every value but the first."""
    return [math.log(later / earlier) for earlier, later in pairwise(values)]


def total_return(observed: Observations, options: Options) -> Finding:
    """Return last / first - 1."""
    values = observed.positive()
    return _percent(values[-1] / values[0] - 1, "last / first - 1", **_ends(observed))


def annualized_return(observed: Observations, options: Options) -> Finding:
    """Return (last / first) ** (1 / years) - 1, the compound annual growth rate.

    Years are calendar days / 365.25 where the days are known, and otherwise steps / periods a year.
    """
    values = observed.positive()
    if observed.days is None:
        years = (len(values) - 1) / options.periods_per_year
        counted = f"steps / {options.periods_per_year}"
    else:
        years = (observed.days[-1] - observed.days[0]).days / DAYS_A_YEAR
        counted = "calendar days / 365.25"
    details: dict[str, Any] = {"years": years, **_ends(observed)}
    if years < 1:
        details["note"] = "The period is shorter than a year: annualising magnifies its return."
    growth = (values[-1] / values[0]) ** (1 / years) - 1
    return _percent(growth, f"(last / first) ^ (1 / years) - 1, years = {counted}", **details)


def volatility(observed: Observations, options: Options) -> Finding:
    """Return the sample standard deviation of the log returns times the root of periods a year."""
    step = stdev(log_returns(observed.positive()))
    periods = options.periods_per_year
    return _percent(
        step * math.sqrt(periods),
        "the sample standard deviation (n - 1) of ln(value / previous value)"
        f" * sqrt({periods}), annualised",
        per_period=100 * step,
        returns=len(observed) - 1,
    )


def daily_returns(observed: Observations, options: Options) -> Finding:
    """Summarise the simple returns; the main value is their mean."""
    returns = simple_returns(observed.positive())
    return _percent(
        fmean(returns),
        "the mean of value / previous value - 1",
        returns=len(returns),
        median=100 * median(returns),
        standard_deviation=100 * stdev(returns),
        best=_extreme(observed, returns, max(returns)),
        worst=_extreme(observed, returns, min(returns)),
        positive=sum(change > 0 for change in returns),
        negative=sum(change < 0 for change in returns),
        unchanged=returns.count(0),
    )


def best_day(observed: Observations, options: Options) -> Finding:
    """Return the largest simple return and the first day that brought it."""
    returns = simple_returns(observed.positive())
    return _day(observed, returns, max(returns), "the largest value / previous value - 1")


def worst_day(observed: Observations, options: Options) -> Finding:
    """Return the smallest simple return and the first day that brought it."""
    returns = simple_returns(observed.positive())
    return _day(observed, returns, min(returns), "the smallest value / previous value - 1")


def _day(observed: Observations, returns: list[float], wanted: float, formula: str) -> Finding:
    index = returns.index(wanted) + 1
    return _percent(
        wanted,
        formula,
        **observed.at(index),
        previous=observed.place(index - 1),
        last=observed.place(index),
    )


def _extreme(observed: Observations, returns: list[float], wanted: float) -> dict[str, Any]:
    return {**observed.at(returns.index(wanted) + 1), "value": 100 * wanted}


def _ends(observed: Observations) -> dict[str, Any]:
    return {"first": observed.place(0), "last": observed.place(len(observed) - 1)}


def _percent(fraction: float, formula: str, **details: Any) -> Finding:
    return Finding(value=100 * fraction, unit=PERCENT, formula=formula, details=details)
