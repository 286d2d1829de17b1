"""Converts prices to a chart description: its labels, values and candles.

The description contains all prices, labels and candles, so the drawing process only draws.
"""

import unicodedata
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from enum import StrEnum
from itertools import groupby
from types import MappingProxyType
from typing import NamedTuple

from caseworker.tools.ports import ToolRefusedError
from caseworker_cases.stocks.prices import DailyPrice, PriceSeries
from caseworker_cases.tools.analysis.metrics import drawdowns
from caseworker_cases.tools.dates.calculation import MONTHS

PIXELS_PER_INCH = 96
"""CSS pixel density, so that a PNG and an SVG have the same size. All sizes are in pixels."""
MIN_WIDTH, MAX_WIDTH, DEFAULT_WIDTH = 400, 2000, 900
MIN_HEIGHT, MAX_HEIGHT, DEFAULT_HEIGHT = 260, 1400, 500
MAX_POINTS = 25_000
"""Maximum number of values in one chart, across all series."""


class ChartKind(StrEnum):
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

    kind: ChartKind
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


def short_date(ordinal: int) -> str:
    """Return a date as in captions, such as 3 Jan 2012, regardless of the locale."""
    day = date.fromordinal(ordinal)
    return f"{day.day} {MONTHS[day.month - 1][:3]} {day.year}"


MAX_TITLE_CHARS = 120
MIN_DAYS = 2
AXIS_PIXELS = 110
"""Approximate width of axis numbers and margins, in pixels."""
PIXELS_A_CANDLE = 4.5
"""Minimum width for each candle, in pixels; narrower candles are indistinguishable."""
TITLES: Mapping[ChartKind, str] = MappingProxyType(
    {
        ChartKind.LINE: "closing price",
        ChartKind.CANDLES: "price range",
        ChartKind.DRAWDOWN: "drawdown",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlotRequest:
    """Options for a price chart; sizes are in pixels."""

    kind: ChartKind
    format: Format
    width: int
    height: int
    adjusted: bool
    title: str | None = None


def composed(several: Sequence[PriceSeries], request: PlotRequest) -> Picture:
    """Build the chart for one series, or for several that are indexed to 100 at the start.

    Raises:
        ToolRefusedError: the series share fewer than ``MIN_DAYS`` trading days.
    """
    shared = set.intersection(*({day.day for day in series.days} for series in several))
    if len(shared) < MIN_DAYS:
        raise ToolRefusedError(
            f"A picture needs at least {MIN_DAYS} trading days, and there are {len(shared)}:"
            " choose wider dates.",
            code="too_few_points",
        )
    days = sorted(shared)
    content = _content(several, days, request)
    first, last = (short_date(day.toordinal()) for day in (days[0], days[-1]))
    sources = " and ".join(dict.fromkeys(_credit(series.source) for series in several))
    price = "Adjusted" if request.adjusted else "As-traded"
    return Picture(
        kind=request.kind,
        format=request.format,
        title=request.title or _title(several, request),
        subtitle=f"{price} {content.about} \N{MIDDLE DOT} {first} \N{EN DASH} {last}",
        unit=content.unit,
        caption=f"Source: {sources} \N{MIDDLE DOT} {len(days):,} trading days",
        days=tuple(day.toordinal() for day in content.days),
        series=content.lines,
        day_width=content.day_width,
        width=request.width,
        height=request.height,
    )


def clean_title(title: str) -> str:
    """Return a title as a single line.

    Control characters become spaces, and a long title is truncated.
    """
    visible = "".join(" " if unicodedata.category(sign)[0] == "C" else sign for sign in title)
    return " ".join(visible.split())[:MAX_TITLE_CHARS].rstrip()


@dataclass(frozen=True, slots=True)
class _Content:
    """The data of a chart, with its description and unit."""

    about: str
    unit: str
    days: Sequence[date]
    lines: tuple[Series, ...]
    day_width: float = 1.0


def _content(
    several: Sequence[PriceSeries], days: Sequence[date], request: PlotRequest
) -> _Content:
    one = several[0]
    closes = {series.symbol: _closes(series, days, request) for series in several}
    values = closes[one.symbol]
    if request.kind is ChartKind.CANDLES:
        return _candles(one, request)
    if request.kind is ChartKind.DRAWDOWN:
        falls = tuple(-100 * fall for fall in drawdowns(values))
        line = Series(one.symbol, falls)
        return _Content("close below its highest so far", "percent", days, (line,))
    if len(several) == 1:
        return _Content("close", one.currency, days, (Series(one.symbol, values),))
    lines = tuple(
        Series(symbol, tuple(100 * value / values[0] for value in values))
        for symbol, values in closes.items()
    )
    unit = f"{short_date(days[0].toordinal())} = 100"
    return _Content("close, relative", unit, days, lines)


def _closes(series: PriceSeries, days: Sequence[date], request: PlotRequest) -> tuple[float, ...]:
    field = "adjusted_close" if request.adjusted else "close"
    closes = {day.day: getattr(day, field) for day in series.days}
    return tuple(closes[day] for day in days)


def _candles(series: PriceSeries, request: PlotRequest) -> _Content:
    period = period_for(series.first.day, series.last.day, request.width - AXIS_PIXELS)
    candles = candles_of(series.days, period, adjusted=request.adjusted)
    lines = tuple(
        Series(name, tuple(getattr(candle, name) for candle in candles))
        for name in ("open", "high", "low", "close")
    )
    about = f"prices, {period.name}: blue rises, orange falls"
    days = [candle.day for candle in candles]
    return _Content(about, series.currency, days, lines, period.width_days)


def _credit(source: str) -> str:
    """Rewrite ``packaged: a set`` as ``a set, packaged``, which reads better after a colon."""
    how, colon, what = source.partition(": ")
    return f"{what}, {how}" if colon else source


def _title(several: Sequence[PriceSeries], request: PlotRequest) -> str:
    """Return the default title; it marks adjusted prices, because they differ from traded ones."""
    names = ", ".join(series.symbol for series in several)
    adjusted = request.kind is ChartKind.LINE and request.adjusted
    compared = len(several) > 1
    return f"{names}: {'adjusted ' * adjusted}{TITLES[request.kind]}{'s compared' * compared}"


class Candle(NamedTuple):
    """The open, high, low and close prices of one period, in the currency of the quotes."""

    day: date
    """Day in the middle of the period."""
    open: float
    high: float
    low: float
    close: float


@dataclass(frozen=True, slots=True)
class Period:
    """The length of the periods that candles cover."""

    name: str
    width_days: float
    """Width of a candle in days: the trading time in its period."""
    every_days: float
    """Average number of calendar days from one candle to the next."""
    key: Callable[[date], Hashable]
    middle: Callable[[date], date]


def _wednesday(day: date) -> date:
    return day - timedelta(days=day.weekday() - 2)


PERIODS = (
    Period("daily", 1.0, 1.45, lambda day: day, lambda day: day),
    Period("weekly", 6.0, 7.0, _wednesday, _wednesday),
    Period(
        "monthly", 28.0, 30.44, lambda day: (day.year, day.month), lambda day: day.replace(day=15)
    ),
)


def period_for(first: date, last: date, pixels: float) -> Period:
    """Return the shortest period whose candles are far enough apart in ``pixels`` of width.

    Each candle gets at least ``PIXELS_A_CANDLE``. Returns the longest period if none fits.
    """
    max_candles = pixels / PIXELS_A_CANDLE
    span = (last - first).days + 1
    return next(
        (period for period in PERIODS if span / period.every_days <= max_candles), PERIODS[-1]
    )


def candles_of(days: Sequence[DailyPrice], period: Period, *, adjusted: bool) -> list[Candle]:
    """Return the candles for the trading days, in chronological order.

    If ``adjusted``, all four prices of a day are multiplied by the adjustment factor of its close.
    """
    return [
        _merged(list(part), period, adjusted)
        for _, part in groupby(days, key=lambda price: period.key(price.day))
    ]


def _merged(days: list[DailyPrice], period: Period, adjusted: bool) -> Candle:
    factors = [day.adjustment if adjusted else 1.0 for day in days]
    return Candle(
        period.middle(days[0].day),
        days[0].open * factors[0],
        max(day.high * factor for day, factor in zip(days, factors, strict=True)),
        min(day.low * factor for day, factor in zip(days, factors, strict=True)),
        days[-1].close * factors[-1],
    )
