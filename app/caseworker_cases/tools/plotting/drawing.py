"""Renders a chart to bytes. The same chart always gives the same bytes.

All charts share one layout and style: labels above and below, axes between.
"""

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import AutoDateLocator
from matplotlib.figure import Figure
from matplotlib.ticker import Formatter, FuncFormatter, MaxNLocator

from caseworker_cases.tools.dates.calculation import MONTHS
from caseworker_cases.tools.plotting.composing import (
    PIXELS_PER_INCH,
    ChartKind,
    Format,
    Picture,
    Series,
    short_date,
)

INK = "#1f2933"
QUIET = "#5f6b7a"
GRID = "#e4e7eb"
AXIS = "#9aa5b1"
PAPER = "#ffffff"

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#AA4499", "#B07D00")
"""Line colours: the Okabe-Ito palette, with light colours darkened so that text in them is
readable."""
RISING, FALLING = COLOURS[0], COLOURS[1]

TITLE_POINTS = 13.5
TEXT_POINTS = 9.5
SMALL_POINTS = 8.0

SETTINGS: Mapping[Any, Any] = MappingProxyType(
    {
        "font.family": "DejaVu Sans",
        "font.size": TEXT_POINTS,
        "text.color": INK,
        "text.parse_math": False,  # a title may contain dollar signs
        "axes.formatter.use_mathtext": False,
        "axes.edgecolor": AXIS,
        "axes.linewidth": 0.8,
        "axes.axisbelow": True,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.spines.left": False,
        "axes.unicode_minus": True,
        "grid.color": GRID,
        "grid.linewidth": 0.8,
        "xtick.color": AXIS,
        "ytick.color": AXIS,
        "xtick.labelcolor": QUIET,
        "ytick.labelcolor": QUIET,
        "xtick.major.size": 4,
        "ytick.major.size": 0,
        "figure.facecolor": PAPER,
        "axes.facecolor": PAPER,
        "savefig.facecolor": PAPER,
        "svg.fonttype": "path",  # looks the same where the font is not installed
        "svg.hashsalt": "caseworker",
        "path.simplify_threshold": 0.2,
    }
)

MARGIN = 24
SPACE_ABOVE = 92
"""Space above the axes in pixels, for title, subtitle and unit."""
SPACE_BELOW = 76
"""Space below the axes in pixels, for dates, years and caption."""
LINE = 16
"""Line height of small text in pixels."""
AXIS_LABELS = 60
"""Approximate width of the axis numbers and their margin, in pixels."""
PIXELS_A_NUMBER = 55
PIXELS_A_DATE = 60
MIN_DATES = 4
EPOCH = date(1970, 1, 1).toordinal()
"""Ordinal of the Unix epoch. A day's position on the time axis is its ordinal minus this number."""
SINGLE_WIDTH, SEVERAL_WIDTH = 1.6, 1.4
LABEL_CHAR_PIXELS = 8.8
CANDLE_SHARE = 0.68
"""Width of a candle's body as a fraction of its period."""
BASE = 100.0
POINTS_PER_INCH = 72

_METADATA: dict[Format, dict[str, str | None]] = {
    # Omit dates and library versions, so that the bytes are reproducible.
    Format.PNG: {"Software": None},
    Format.SVG: {"Date": None, "Creator": "Caseworker"},
}


@dataclass(frozen=True, slots=True)
class Frame:
    """A figure with its title and labels, and the axes to draw on."""

    figure: Figure
    axes: Axes
    picture: Picture

    def places(self) -> list[float]:
        """Return the horizontal position of each day on the time axis."""
        return [float(day - EPOCH) for day in self.picture.days]

    def finish(self, suffix: str, right: float) -> None:
        """Set ticks and labels, and fit the margins; ``right`` is the right margin in pixels."""
        picture, axes = self.picture, self.axes
        width = picture.width - right - AXIS_LABELS
        span = picture.days[-1] - picture.days[0]
        dates = AutoDateLocator(  # type: ignore[no-untyped-call]
            minticks=max(1, min(MIN_DATES, span)), maxticks=max(2, int(width // PIXELS_A_DATE))
        )
        axes.xaxis.set_major_locator(dates)
        axes.xaxis.set_major_formatter(_DateLabels())
        rows = max(2, (picture.height - SPACE_ABOVE - SPACE_BELOW) // PIXELS_A_NUMBER)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=rows, steps=[1, 2, 2.5, 5, 10]))
        axes.yaxis.set_major_formatter(
            FuncFormatter(lambda value, _: number_text(value, ",.13g") + suffix)
        )
        axes.grid(axis="y")
        axes.tick_params(pad=6)
        self._fit(right)

    def _fit(self, right: float) -> None:
        """Set the left margin to the width of the longest axis number."""
        picture = self.picture
        self.figure.subplots_adjust(
            left=MARGIN / picture.width,
            right=1 - right / picture.width,
            top=1 - SPACE_ABOVE / picture.height,
            bottom=SPACE_BELOW / picture.height,
        )
        self.figure.draw_without_rendering()
        widths = [label.get_window_extent().width for label in self.axes.get_yticklabels()]
        left_margin = MARGIN + max(widths, default=0) + 8
        self.figure.subplots_adjust(left=left_margin / picture.width)


class _DateLabels(Formatter):
    """Formats date ticks in English, regardless of the process's locale: 2012, Feb, 8 Feb."""

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        """Return the year for January 1, the month for the first of another month, else the day."""
        days = [date.fromordinal(EPOCH + round(value)) for value in values]
        monthly = all(day.day == 1 for day in days)
        return [_label(day, monthly) for day in days]

    def __call__(self, value: float, pos: int | None = None) -> str:
        return self.format_ticks([value])[0]


def _label(day: date, monthly: bool) -> str:
    month = MONTHS[day.month - 1][:3]
    if not monthly:
        return f"{day.day} {month}"
    return str(day.year) if day.month == 1 else month


def framed(picture: Picture) -> Frame:
    """Create a figure with a chart's title and labels and with empty axes."""
    # The size is truncated to whole pixels; the extra avoids losing one to float error.
    more = 0.01 if picture.format is Format.PNG else 0.0
    size = [(side + more) / PIXELS_PER_INCH for side in (picture.width, picture.height)]
    figure = Figure(figsize=(size[0], size[1]), dpi=PIXELS_PER_INCH)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    top = picture.height
    _write(figure, picture.title, top - 33, size=TITLE_POINTS, weight="bold")
    _write(figure, picture.subtitle, top - 54, size=TEXT_POINTS, color=QUIET)
    _write(figure, picture.unit, top - SPACE_ABOVE + 10, size=SMALL_POINTS, color=QUIET)
    _write(figure, picture.caption, 18, size=SMALL_POINTS, color=QUIET)
    return Frame(figure, axes, picture)


def _write(figure: Figure, words: str, y: float, **style: Any) -> None:
    """Write text at the left margin, ``y`` pixels above the bottom; long text is truncated."""
    width, height = figure.bbox.width, figure.bbox.height
    text = figure.text(MARGIN / width, y / height, words, parse_math=False, **style)
    while words and text.get_window_extent().width > width - 2 * MARGIN:
        words = words[: len(words) * 9 // 10].rstrip()
        text.set_text(words + "\N{HORIZONTAL ELLIPSIS}")


def number_text(number: float, form: str) -> str:
    """Format a number with a true minus sign, without -0; ``form`` is a spec such as ``,.2f``."""
    return format(number + 0.0, f"z{form}").replace("-", "\N{MINUS SIGN}")


class CapExceededError(Exception):
    """A rendered chart exceeds the size limit."""


class _CappedBytes(io.BytesIO):
    """An in-memory file with a maximum size."""

    def __init__(self, max_bytes: int) -> None:
        super().__init__()
        self._max_bytes = max_bytes

    def write(self, data: Any) -> int:
        """Write all of ``data``, or nothing if the file would exceed its maximum size."""
        if self.tell() + memoryview(data).nbytes > self._max_bytes:
            raise CapExceededError
        return super().write(data)


def drawn(picture: Picture, max_bytes: int) -> bytes:
    """Render the chart as a PNG or SVG file.

    Raises:
        CapExceededError: the file would exceed ``max_bytes``; rendering stops there.
    """
    with matplotlib.rc_context(dict(SETTINGS)):
        frame = framed(picture)
        DRAWN[picture.kind](frame)
        out = _CappedBytes(max_bytes)
        metadata = dict(_METADATA[picture.format])
        if picture.format is Format.SVG:
            metadata["Title"] = picture.title
        frame.figure.savefig(
            out, format=picture.format.value, dpi=PIXELS_PER_INCH, metadata=metadata
        )
    return out.getvalue()


def _line(frame: Frame) -> None:
    """Draw one line with its last value, or several indexed lines with their names."""
    places, axes = frame.places(), frame.axes
    series = frame.picture.series
    several = len(series) > 1
    for one, colour in zip(series, COLOURS, strict=False):
        axes.plot(
            places,
            one.values,
            color=colour,
            linewidth=SEVERAL_WIDTH if several else SINGLE_WIDTH,
            solid_joinstyle="round",
            solid_capstyle="round",
        )
        axes.plot(places[-1:], one.values[-1:], "o", color=colour, markersize=4, clip_on=False)
    if several:
        axes.axhline(BASE, color=AXIS, linewidth=0.8, zorder=1)
    _days_to_the_edges(frame, 0.5)
    axes.margins(y=0.06)
    labels = [_end_label(one, with_name=several) for one in series]
    frame.finish("", right=MARGIN + LABEL_CHAR_PIXELS * max(map(len, labels)))
    _label_ends(frame, labels)


def _drawdown(frame: Frame) -> None:
    """Draw the drawdown from the running maximum, and label its deepest point."""
    places, axes = frame.places(), frame.axes
    values = frame.picture.series[0].values
    axes.fill_between(places, values, 0, color=COLOURS[1], alpha=0.16, linewidth=0)
    axes.plot(places, values, color=COLOURS[1], linewidth=1.2)
    axes.axhline(0, color=AXIS, linewidth=0.8)
    _days_to_the_edges(frame, 0.5)
    deepest = min(values)
    axes.set_ylim(deepest * 1.14 if deepest < 0 else -1.0, max(0.0, -deepest * 0.02))
    frame.finish("%", right=MARGIN)
    if deepest < 0:
        _name_the_deepest(frame, values.index(deepest))


def _candles(frame: Frame) -> None:
    """Draw candles; a body is blue if the price rose or did not change, else orange."""
    picture, axes = frame.picture, frame.axes
    opens, highs, lows, closes = (one.values for one in picture.series)
    thin = (max(highs) - min(lows)) * 0.0015  # keeps a day without change visible
    pairs = list(zip(opens, closes, strict=True))
    colours = [RISING if close >= opened else FALLING for opened, close in pairs]
    axes.vlines(frame.places(), lows, highs, colors=colours, linewidth=0.9)
    axes.bar(
        frame.places(),
        [max(abs(close - opened), thin) for opened, close in pairs],
        CANDLE_SHARE * picture.day_width,
        [min(pair) for pair in pairs],
        color=colours,
    )
    axes.use_sticky_edges = False
    _days_to_the_edges(frame, picture.day_width)
    axes.margins(y=0.06)
    frame.finish("", right=MARGIN)


DRAWN: Mapping[ChartKind, Callable[[Frame], None]] = MappingProxyType(
    {ChartKind.LINE: _line, ChartKind.CANDLES: _candles, ChartKind.DRAWDOWN: _drawdown}
)


def _days_to_the_edges(frame: Frame, margin: float) -> None:
    """Set the horizontal limits so that the days fill the width, with a margin in days."""
    places = frame.places()
    margin = max(margin, (places[-1] - places[0]) * 0.006)
    frame.axes.set_xlim(places[0] - margin, places[-1] + margin)


def _end_label(one: Series, *, with_name: bool) -> str:
    last = one.values[-1]
    return f"{one.name}  {number_text(last, ',.1f')}" if with_name else number_text(last, ",.2f")


def _label_ends(frame: Frame, labels: Sequence[str]) -> None:
    """Label the line ends with their last values, without overlaps."""
    series, axes, last = frame.picture.series, frame.axes, frame.places()[-1]
    ends = [float(axes.transData.transform((last, one.values[-1]))[1]) for one in series]
    heights = apart(ends, LINE)
    lines = zip(series, labels, ends, heights, COLOURS, strict=False)
    for one, label, end, height, colour in lines:
        axes.annotate(
            label,
            (last, one.values[-1]),
            xytext=(7, (height - end) * POINTS_PER_INCH / PIXELS_PER_INCH),
            textcoords="offset points",
            color=colour,
            fontsize=TEXT_POINTS,
            fontweight="bold",
            va="center",
            annotation_clip=False,
            parse_math=False,
        )


def apart(heights: Sequence[float], distance: float) -> list[float]:
    """Return the label heights, moved so that neighbours are at least ``distance`` apart.

    The order stays the same.
    """
    order = sorted(range(len(heights)), key=heights.__getitem__)
    moved = list(heights)
    for lower, upper in pairwise(order):
        moved[upper] = max(moved[upper], moved[lower] + distance)
    pushed = max((moved[place] - heights[place] for place in order), default=0.0) / 2
    return [height - pushed for height in moved]


def _name_the_deepest(frame: Frame, index: int) -> None:
    places, axes = frame.places(), frame.axes
    value = frame.picture.series[0].values[index]
    axes.plot(places[index], value, "o", color=COLOURS[1], markersize=5, clip_on=False)
    left_half = places[index] <= (places[0] + places[-1]) / 2
    axes.annotate(
        f"{number_text(value, ',.1f')}% on {short_date(frame.picture.days[index])}",
        (places[index], value),
        xytext=(8 if left_half else -8, -3),
        textcoords="offset points",
        ha="left" if left_half else "right",
        va="top",
        color=QUIET,
        fontsize=TEXT_POINTS,
        parse_math=False,
        bbox={"facecolor": PAPER, "edgecolor": "none", "alpha": 0.75, "pad": 1.5},
    )
