"""The chart description that is sent to the drawing process.

Prices, labels and candles are decided before, so that the drawing process only draws.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from enum import StrEnum
from typing import Any

from caseworker.tools.ports import ToolRefusedError
from caseworker_cases.tools.dates.calculation import MONTHS

PIXELS_PER_INCH = 96
"""CSS pixel density, so that a PNG and an SVG have the same size. All sizes are in pixels."""
MIN_WIDTH, MAX_WIDTH, DEFAULT_WIDTH = 400, 2000, 900
MIN_HEIGHT, MAX_HEIGHT, DEFAULT_HEIGHT = 260, 1400, 500
MAX_POINTS = 25_000
"""Maximum number of values in one chart, across all series."""


class Kind(StrEnum):
    """The type of chart."""

    LINE = "line"
    CANDLES = "candles"
    DRAWDOWN = "drawdown"


class Format(StrEnum):
    """The file format of a chart."""

    PNG = "png"
    SVG = "svg"

    @property
    def media_type(self) -> str:
        """IANA media type of the file."""
        return "image/png" if self is Format.PNG else "image/svg+xml"


@dataclass(frozen=True, slots=True)
class Series:
    """A named series with one value for each day of the chart."""

    name: str
    values: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """A chart description. Sizes are in pixels."""

    kind: Kind
    format: Format
    title: str
    subtitle: str
    unit: str
    """Unit of the values on the vertical axis."""
    caption: str
    days: tuple[int, ...]
    """Days on the time axis as proleptic Gregorian ordinals, ascending."""
    series: tuple[Series, ...]
    """Series to draw. A candle chart has four: open, high, low and close."""
    day_width: float = 1.0
    """Number of days that one candle covers."""
    width: int = DEFAULT_WIDTH
    height: int = DEFAULT_HEIGHT

    def __post_init__(self) -> None:
        """Validate the size.

        Raises:
            ToolRefusedError: it has more than MAX_POINTS values.
            ValueError: its size is outside the limits, or a series does not have one value for each
                day.
        """
        if len(self.days) * len(self.series) > MAX_POINTS:
            raise ToolRefusedError(
                f"a picture may have {MAX_POINTS:,} values: choose narrower dates.",
                code="too_large",
            )
        if not (MIN_WIDTH <= self.width <= MAX_WIDTH and MIN_HEIGHT <= self.height <= MAX_HEIGHT):
            raise ValueError("the picture is too small or too large")
        if not self.days or any(len(line.values) != len(self.days) for line in self.series):
            raise ValueError("every series needs one value for each day")

    @classmethod
    def read(cls, read: Mapping[str, Any]) -> "Picture":
        """Restore a chart description from the JSON form of its ``asdict``."""
        lines = tuple(Series(one["name"], tuple(one["values"])) for one in read["series"])
        kind, form, days = Kind(read["kind"]), Format(read["format"]), tuple(read["days"])
        return cls(**{**read, "kind": kind, "format": form, "days": days, "series": lines})


def short_date(ordinal: int) -> str:
    """Return a date as in captions, such as 3 Jan 2012, regardless of the locale."""
    day = date.fromordinal(ordinal)
    return f"{day.day} {MONTHS[day.month - 1][:3]} {day.year}"
