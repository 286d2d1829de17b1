"""The layout that all charts share: labels above and below, axes between, and one style."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from types import MappingProxyType
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.dates import AutoDateLocator
from matplotlib.figure import Figure
from matplotlib.ticker import Formatter, FuncFormatter, MaxNLocator

from caseworker_cases.tools.dates.calculation import MONTHS
from caseworker_cases.tools.plotting.picture import PIXELS_PER_INCH, Format, Picture

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
ABOVE = 92
"""Space above the axes in pixels, for title, subtitle and unit."""
BELOW = 76
"""Space below the axes in pixels, for dates, years and caption."""
LINE = 16
"""Line height of small text in pixels."""
AXIS_LABELS = 60
"""Approximate width of the axis numbers and their margin, in pixels."""
PIXELS_A_NUMBER = 55
PIXELS_A_DATE = 60
LEAST_DATES = 4
EPOCH = date(1970, 1, 1).toordinal()
"""Ordinal of the Unix epoch. A day's position on the time axis is its ordinal minus this number."""


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
        room = picture.width - right - AXIS_LABELS
        span = picture.days[-1] - picture.days[0]
        dates = AutoDateLocator(  # type: ignore[no-untyped-call]
            minticks=max(1, min(LEAST_DATES, span)), maxticks=max(2, int(room // PIXELS_A_DATE))
        )
        axes.xaxis.set_major_locator(dates)
        axes.xaxis.set_major_formatter(_DateLabels())
        rows = max(2, (picture.height - ABOVE - BELOW) // PIXELS_A_NUMBER)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=rows, steps=[1, 2, 2.5, 5, 10]))
        axes.yaxis.set_major_formatter(
            FuncFormatter(lambda value, _: plain(value, ",.13g") + suffix)
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
            top=1 - ABOVE / picture.height,
            bottom=BELOW / picture.height,
        )
        self.figure.draw_without_rendering()
        widths = [label.get_window_extent().width for label in self.axes.get_yticklabels()]
        left = MARGIN + max(widths, default=0) + 8
        self.figure.subplots_adjust(left=left / picture.width)


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
    _write(figure, picture.unit, top - ABOVE + 10, size=SMALL_POINTS, color=QUIET)
    _write(figure, picture.caption, 18, size=SMALL_POINTS, color=QUIET)
    return Frame(figure, axes, picture)


def _write(figure: Figure, words: str, y: float, **style: Any) -> None:
    """Write text at the left margin, ``y`` pixels above the bottom; long text is truncated."""
    width, height = figure.bbox.width, figure.bbox.height
    text = figure.text(MARGIN / width, y / height, words, parse_math=False, **style)
    while words and text.get_window_extent().width > width - 2 * MARGIN:
        words = words[: len(words) * 9 // 10].rstrip()
        text.set_text(words + "\N{HORIZONTAL ELLIPSIS}")


def plain(number: float, form: str) -> str:
    """Format a number with a real minus sign and without -0; ``form`` is such as ``,.2f``."""
    return format(number + 0.0, f"z{form}").replace("-", "\N{MINUS SIGN}")
