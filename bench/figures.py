"""Measured values and their targets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median, quantiles


@dataclass(frozen=True, slots=True)
class Samples:
    """Repeated measurements of one quantity."""

    values: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median value."""
        return median(self.values)

    @property
    def spread(self) -> float:
        """The distance of the quartiles as a share of the median: the noise of the measurement."""
        if len(self.values) < 2 or not self.median:
            return 0.0
        first, _, third = quantiles(self.values, n=4, method="inclusive")
        return (third - first) / self.median

    def percentile(self, percent: float) -> float:
        """Return the smallest value that at least ``percent`` of the values do not exceed."""
        ordered = sorted(self.values)
        rank = -(-len(ordered) * percent // 100)  # rounded up
        return ordered[max(int(rank), 1) - 1]


def ratio(ours: Samples, theirs: Samples) -> float:
    """Return the median of the ratios of values measured in the same round.

    Measurements close in time share the state of the machine, so this is more stable than a ratio
    of medians.

    Raises:
        ValueError: The two were not measured in the same rounds.
    """
    pairs = zip(ours.values, theirs.values, strict=True)
    return median(our / their for our, their in pairs)


class Grade(StrEnum):
    """The grade of a value against its target."""

    STRETCH = "stretch reached"
    MUST = "reached"
    MISSED = "not reached"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The required value and the desired value."""

    must: float
    stretch: float | None = None
    unit: str = "x"
    """The unit; ``x`` is a ratio."""
    at_least: bool = False
    """Whether larger is better."""

    def grade(self, value: float) -> Grade:
        """Return the grade of a value."""
        if self.stretch is not None and self._holds(value, self.stretch):
            return Grade.STRETCH
        return Grade.MUST if self._holds(value, self.must) else Grade.MISSED

    def _holds(self, value: float, limit: float) -> bool:
        return value >= limit if self.at_least else value <= limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A value with its target."""

    what: str
    value: float
    target: Target

    @property
    def grade(self) -> Grade:
        """The grade of the value."""
        return self.target.grade(self.value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One quantity measured on every side, with its checks."""

    title: str
    unit: str
    sides: Mapping[str, Samples]
    """Samples by the name of the side, ours first."""
    checks: Sequence[Check] = ()
