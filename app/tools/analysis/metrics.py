"""Every metric by its name, with what it needs."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from app.tools.analysis import drawdown, levels, relations, returns
from app.tools.analysis.observations import Finding, Observations, Options

CORRELATION = "correlation"


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric of one series."""

    words: str
    """What it is called in a sentence."""
    least: int
    """How many observations it needs."""
    compute: Callable[[Observations, Options], Finding]
    uses: frozenset[str] = frozenset()
    """The options that change it."""


METRICS: Mapping[str, Metric] = MappingProxyType(
    {
        "total_return": Metric("total return", 2, returns.total_return),
        "annualized_return": Metric(
            "annualised return", 2, returns.annualized_return, frozenset({"periods_per_year"})
        ),
        "daily_returns": Metric("mean daily return", 3, returns.daily_returns),
        "volatility": Metric(
            "annualised volatility", 3, returns.volatility, frozenset({"periods_per_year"})
        ),
        "max_drawdown": Metric("maximum drawdown", 2, drawdown.max_drawdown),
        "moving_average": Metric("moving average", 1, levels.moving_average, frozenset({"window"})),
        "trend": Metric("trend", 3, relations.trend),
        "mean": Metric("mean", 1, levels.mean_of),
        "median": Metric("median", 1, levels.median_of),
        "standard_deviation": Metric("standard deviation", 2, levels.standard_deviation_of),
        "min": Metric("minimum", 1, levels.lowest),
        "max": Metric("maximum", 1, levels.highest),
        "change": Metric("change", 2, levels.change_of),
        "best_day": Metric("best day", 2, returns.best_day),
        "worst_day": Metric("worst day", 2, returns.worst_day),
    }
)
"""The metrics of one series; ``correlation`` takes two."""

NAMES = (*METRICS, CORRELATION)
LEAST_FOR_CORRELATION = 4
"""Common observations, hence three returns; two points always lie on a line."""
