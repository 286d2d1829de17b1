"""How values go with time, and with other values."""

from statistics import StatisticsError, correlation, linear_regression

from app.tools.analysis.observations import DAYS_A_YEAR, Finding, Observations, Options
from app.tools.analysis.returns import simple_returns
from app.tools.stocks.refusal import StockRefusedError


def trend(observed: Observations, options: Options) -> Finding:
    """Return the slope of the straight line that fits best (least squares), and its r squared.

    Time is counted in calendar days from the first one and the main value is a slope per year of
    365.25 days; where the days are not known, both are by steps.
    """
    if observed.days is None:
        times = [float(step) for step in range(len(observed))]
        scale, step_name = 1.0, "step"
    else:
        times = [float((day - observed.days[0]).days) for day in observed.days]
        scale, step_name = DAYS_A_YEAR, "year"
    line = linear_regression(times, observed.values)
    details = {
        "slope_per_day": line.slope,
        "fitted_first": line.intercept,
        "fitted_last": line.intercept + line.slope * times[-1],
        "r_squared": _r_squared(times, observed.values),
        "direction": "rising" if line.slope > 0 else "falling" if line.slope < 0 else "flat",
    }
    if observed.days is None:
        del details["slope_per_day"]
    return Finding(
        value=line.slope * scale,
        unit=f"{observed.unit} per {step_name}",
        formula=f"the slope of the least squares line through the values, per {step_name}",
        details=details,
    )


def _r_squared(times: list[float], values: tuple[float, ...]) -> float | None:
    """Return the share of the variance that the line explains; None if there is no variance."""
    try:
        return correlation(times, values) ** 2
    except StatisticsError:
        return None


def correlation_of_returns(one: Observations, other: Observations) -> Finding:
    """Return Pearson's correlation of the simple returns of two series on their common days.

    Raises:
        StockRefusedError: one of them does not vary, so that no correlation is defined.
    """
    returns = simple_returns(one.positive()), simple_returns(other.positive())
    try:
        found = correlation(*returns)
    except StatisticsError as error:
        raise StockRefusedError(
            "One of the two series has the same return every time: no correlation is defined.",
            code="undefined",
        ) from error
    return Finding(
        value=max(-1.0, min(1.0, found)),  # rounding may carry it a hair beyond
        unit="coefficient",
        formula="Pearson's correlation of value / previous value - 1 of both, from -1 to 1",
        details={"returns": len(returns[0])},
    )
