"""Figures from the packaged prices, worked out from the file itself.

The definitions are those that the tools document: returns of adjusted closing prices in percent,
volatility as the sample standard deviation of log returns times the root of 252.
"""

import csv
import gzip
import math
from fractions import Fraction
from functools import cache
from importlib.resources import files
from itertools import pairwise
from statistics import correlation, median, stdev

Row = dict[str, str]


@cache
def _table() -> tuple[Row, ...]:
    packed = files("caseworker_cases.stocks").joinpath("data", "stocks.csv.gz").read_bytes()
    return tuple(csv.DictReader(gzip.decompress(packed).decode().splitlines()))


@cache
def rows(symbol: str) -> tuple[Row, ...]:
    """Return the days of a symbol, the earliest first."""
    return tuple(row for row in _table() if row["Ticker"] == symbol)


def on(symbol: str, day: str, column: str = "Close") -> Fraction:
    """Return a figure of one day (ISO), exactly as it stands in the file."""
    (row,) = (row for row in rows(symbol) if row["Date"] == day)
    return Fraction(row[column])


def between(symbol: str, start: str, end: str, column: str = "Adj Close") -> list[Fraction]:
    """Return the figures of the trading days from ``start`` to ``end``, both included."""
    return [Fraction(row[column]) for row in rows(symbol) if start <= row["Date"] <= end]


def in_year(symbol: str, year: int, column: str = "Adj Close") -> list[Fraction]:
    """Return the figures of a calendar year."""
    return between(symbol, f"{year}-01-01", f"{year}-12-31", column)


def mean(values: list[Fraction]) -> Fraction:
    """Return the arithmetic mean."""
    return sum(values, Fraction(0)) / len(values)


def middle(values: list[Fraction]) -> Fraction:
    """Return the median."""
    return median(values)


def returns(values: list[Fraction]) -> list[Fraction]:
    """Return the change from each value to the next, in percent."""
    return [(after / before - 1) * 100 for before, after in pairwise(values)]


def total_return(values: list[Fraction]) -> Fraction:
    """Return the change from the first value to the last, in percent."""
    return (values[-1] / values[0] - 1) * 100


def deepest_fall(values: list[Fraction]) -> Fraction:
    """Return the largest fall from an earlier high, in percent of it, as a positive number."""
    high, deepest = values[0], Fraction(0)
    for value in values:
        high = max(high, value)
        deepest = max(deepest, (1 - value / high) * 100)
    return deepest


def volatility(values: list[Fraction]) -> float:
    """Return the annualised volatility in percent."""
    logs = [math.log(after / before) for before, after in pairwise(values)]
    return 100 * stdev(logs) * math.sqrt(252)


def correlated(one: list[Fraction], other: list[Fraction]) -> float:
    """Return Pearson's correlation of the returns of two series of the same days."""
    return correlation(
        [float(change) for change in returns(one)], [float(change) for change in returns(other)]
    )
