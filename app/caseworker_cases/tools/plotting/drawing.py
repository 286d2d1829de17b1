"""Renders a chart to bytes. The same chart always gives the same bytes."""

import io
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any

import matplotlib

from caseworker_cases.tools.plotting.frame import (
    AXIS,
    COLOURS,
    FALLING,
    LINE,
    MARGIN,
    PAPER,
    QUIET,
    RISING,
    SETTINGS,
    TEXT_POINTS,
    Frame,
    framed,
    plain,
)
from caseworker_cases.tools.plotting.picture import (
    PIXELS_PER_INCH,
    Format,
    Kind,
    Picture,
    Series,
    short_date,
)

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
    labels = [_end_label(one, named=several) for one in series]
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


DRAWN: Mapping[Kind, Callable[[Frame], None]] = MappingProxyType(
    {Kind.LINE: _line, Kind.CANDLES: _candles, Kind.DRAWDOWN: _drawdown}
)


def _days_to_the_edges(frame: Frame, room: float) -> None:
    """Set the horizontal limits so that the days fill the width, with a margin in days."""
    places = frame.places()
    room = max(room, (places[-1] - places[0]) * 0.006)
    frame.axes.set_xlim(places[0] - room, places[-1] + room)


def _end_label(one: Series, *, named: bool) -> str:
    last = one.values[-1]
    return f"{one.name}  {plain(last, ',.1f')}" if named else plain(last, ",.2f")


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
    for below, above in pairwise(order):
        moved[above] = max(moved[above], moved[below] + distance)
    pushed = max((moved[place] - heights[place] for place in order), default=0.0) / 2
    return [height - pushed for height in moved]


def _name_the_deepest(frame: Frame, index: int) -> None:
    places, axes = frame.places(), frame.axes
    value = frame.picture.series[0].values[index]
    axes.plot(places[index], value, "o", color=COLOURS[1], markersize=5, clip_on=False)
    left_half = places[index] <= (places[0] + places[-1]) / 2
    axes.annotate(
        f"{plain(value, ',.1f')}% on {short_date(frame.picture.days[index])}",
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
