"""Metrics of the values themselves."""

from statistics import fmean, median, stdev

from app.tools.analysis.observations import Finding, Observations, Options

RECENT = 10
"""How many moving averages a result shows."""


def mean_of(observed: Observations, options: Options) -> Finding:
    """Return the arithmetic mean of all values."""
    return _finding(observed, fmean(observed.values), "the sum of the values / their number")


def median_of(observed: Observations, options: Options) -> Finding:
    """Return the middle value, or the mean of the two in the middle."""
    return _finding(
        observed, median(observed.values), "the middle value, or the mean of the two middle values"
    )


def standard_deviation_of(observed: Observations, options: Options) -> Finding:
    """Return the sample standard deviation of the values (n - 1)."""
    formula = "the sample standard deviation of the values (divided by n - 1)"
    return _finding(observed, stdev(observed.values), formula)


def lowest(observed: Observations, options: Options) -> Finding:
    """Return the smallest value and the first place where it stands."""
    index = min(range(len(observed)), key=observed.values.__getitem__)
    return _finding(observed, observed.values[index], "the smallest value", **observed.at(index))


def highest(observed: Observations, options: Options) -> Finding:
    """Return the largest value and the first place where it stands."""
    index = max(range(len(observed)), key=observed.values.__getitem__)
    return _finding(observed, observed.values[index], "the largest value", **observed.at(index))


def change_of(observed: Observations, options: Options) -> Finding:
    """Return the last value minus the first, in the unit of the values."""
    first, last = observed.values[0], observed.values[-1]
    return _finding(observed, last - first, "the last value - the first value", **_ends(observed))


def moving_average(observed: Observations, options: Options) -> Finding:
    """Return the mean of the latest ``window`` values, and those of the days before."""
    window, values = options.window, observed.values
    ends = range(max(window, len(values) - RECENT + 1), len(values) + 1)
    recent = [{**observed.at(end - 1), "value": fmean(values[end - window : end])} for end in ends]
    return _finding(
        observed,
        fmean(values[-window:]),
        f"the mean of the latest {window} values (simple moving average)",
        window=window,
        last_value=observed.values[-1],
        recent=recent,
    )


def _ends(observed: Observations) -> dict[str, object]:
    return {"first": observed.place(0), "last": observed.place(len(observed) - 1)}


def _finding(observed: Observations, value: float, formula: str, **details: object) -> Finding:
    return Finding(value=value, unit=observed.unit, formula=formula, details=details)
