"""What every picture has: words above and below, and a pair of axes between."""

from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import MaxNLocator

from app.tools.plotting.picture import PIXELS_PER_INCH, Format, Picture
from app.tools.plotting.style import QUIET, SMALL_POINTS, TEXT_POINTS, TITLE_POINTS
from app.tools.plotting.ticks import EPOCH, NumberLabels, date_ticks

MARGIN = 24
ABOVE = 92
"""Pixels between the top and the axes: title, subtitle, unit."""
BELOW = 76
"""Pixels between the axes and the bottom: dates, years, caption."""
LINE = 16
"""Pixels from one line of small text to the next."""
AXIS_LABELS = 60
"""About how many pixels the numbers beside the axis take, with their margin."""
PIXELS_A_NUMBER = 55


@dataclass(frozen=True, slots=True)
class Frame:
    """A figure with its words, and the axes to draw on."""

    figure: Figure
    axes: Axes
    picture: Picture

    def places(self) -> list[float]:
        """Return where the days stand on the horizontal axis."""
        return [float(day - EPOCH) for day in self.picture.days]

    def settle(self, suffix: str, right: float) -> None:
        """Set the ticks and give the labels beside the axes their room; ``right`` is in pixels."""
        picture, axes = self.picture, self.axes
        room = picture.width - right - AXIS_LABELS
        dates = date_ticks(picture.days[0], picture.days[-1], room)
        axes.set_xticks(dates.places(), dates.labels)
        rows = max(2, (picture.height - ABOVE - BELOW) // PIXELS_A_NUMBER)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=rows, steps=[1, 2, 2.5, 5, 10]))
        axes.yaxis.set_major_formatter(NumberLabels(suffix))
        axes.grid(axis="y")
        axes.tick_params(pad=6)
        self._fit(right)

    def _fit(self, right: float) -> None:
        """Leave as much room on the left as the longest number needs."""
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


def framed(picture: Picture) -> Frame:
    """Return a figure with the words of a picture and empty axes."""
    # Pixels are cut to whole ones: a little more keeps what fractions cannot hold from losing one.
    more = 0.01 if picture.format is Format.PNG else 0.0
    width, height = (
        (picture.width + more) / PIXELS_PER_INCH,
        (picture.height + more) / PIXELS_PER_INCH,
    )
    figure = Figure(figsize=(width, height), dpi=PIXELS_PER_INCH)
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    top = picture.height
    room = picture.width - 2 * MARGIN
    title = _words(figure, picture.title, top - 33, size=TITLE_POINTS, weight="bold")
    subtitle = _words(figure, picture.subtitle, top - 54, size=TEXT_POINTS, color=QUIET)
    unit = _words(figure, picture.unit, top - ABOVE + 10, size=SMALL_POINTS, color=QUIET)
    caption = _words(figure, picture.caption, 18, size=SMALL_POINTS, color=QUIET)
    for text in (title, subtitle, unit, caption):
        _shorten(text, room)
    return Frame(figure, axes, picture)


def _words(figure: Figure, words: str, y: float, **style: Any) -> Text:
    """Write words at the left margin, ``y`` pixels above the bottom."""
    width, height = figure.bbox.width, figure.bbox.height
    return figure.text(MARGIN / width, y / height, words, parse_math=False, **style)


def _shorten(text: Text, room: float) -> None:
    """Cut words that are wider than the picture and end them with an ellipsis."""
    words = text.get_text()
    while words and text.get_window_extent().width > room:
        words = words[: len(words) * 9 // 10].rstrip()
        text.set_text(words + "\N{HORIZONTAL ELLIPSIS}")
