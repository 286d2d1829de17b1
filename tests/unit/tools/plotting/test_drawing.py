"""Rendered pictures: formats, sizes, hostile titles, limits and reproducible bytes."""

import io
import re
import time
from dataclasses import replace
from datetime import date
from functools import cache
from itertools import pairwise
from xml.etree import ElementTree

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from matplotlib.image import imread

from caseworker.tools.ports import ToolRefusedError
from caseworker_cases.tools.plotting.composing import (
    MAX_POINTS,
    ChartKind,
    Format,
    Picture,
    Series,
    short_date,
)
from caseworker_cases.tools.plotting.drawing import (
    COLOURS,
    DRAWN,
    PAPER,
    CapExceededError,
    apart,
    drawn,
    framed,
    number_text,
)
from tests.unit.tools.plotting.pictures import CANDLES, COMPARISON, EVERY_KIND, LINE

CAP = 5_000_000


def figure_of(picture: Picture) -> Figure:
    """Return the figure of a picture for inspection."""
    frame = framed(picture)
    DRAWN[picture.kind](frame)
    return frame.figure


def words_on(figure: Figure) -> list[str]:
    """Return every text on a figure and its axes."""
    axes = figure.axes[0]
    texts = [*figure.texts, *axes.texts, *axes.get_xticklabels(), *axes.get_yticklabels()]
    return [text.get_text() for text in texts]


@cache
def drawn_once(picture: Picture) -> bytes:
    """Return a cached picture that several tests inspect."""
    return drawn(picture, CAP)


def small(kind: str, form: Format) -> Picture:
    return replace(EVERY_KIND[kind], width=731, height=419, format=form)


@pytest.mark.req("002/5.3")
@pytest.mark.parametrize("kind", EVERY_KIND)
def test_a_png_has_the_size_that_was_asked_for(kind: str) -> None:
    """The size is exact, and the picture is not blank."""
    data = drawn_once(small(kind, Format.PNG))

    pixels = imread(io.BytesIO(data), format="png")
    assert data.startswith(b"\x89PNG")
    assert pixels.shape == (419, 731, 4)
    assert len(np.unique(pixels)) > 20


@pytest.mark.req("002/5.3")
@pytest.mark.parametrize("kind", EVERY_KIND)
def test_an_svg_is_of_the_same_size_in_browsers(kind: str) -> None:
    """Browsers use 96 pixels per 72 points."""
    root = ElementTree.fromstring(drawn_once(small(kind, Format.SVG)))  # noqa: S314

    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert (root.get("width"), root.get("height")) == ("548.25pt", "314.25pt")


@pytest.mark.parametrize("form", Format)
@pytest.mark.parametrize(
    "kind", ["line", *(pytest.param(each, marks=pytest.mark.proof) for each in [*EVERY_KIND][1:])]
)
def test_the_same_picture_is_always_the_same_bytes(kind: str, form: Format) -> None:
    """The file contains no date, random ID or library version."""
    data = drawn_once(small(kind, form))

    assert drawn(small(kind, form), CAP) == data
    assert not re.search(rb"matplotlib v|matplotlib version|dc:date|Software", data)


@pytest.mark.parametrize("form", Format)
def test_a_hostile_title_is_only_text(form: Format) -> None:
    """Formulas, markup and comment ends in the title have no effect."""
    title = r"$\frac{1}{0$ --><script>alert(1)</script> <!-- \x & \" $x^2$"
    data = drawn(replace(LINE, title=title, format=form, width=1600), CAP)

    if form is Format.SVG:
        tags = {element.tag for element in ElementTree.fromstring(data).iter()}  # noqa: S314
        assert not any("script" in tag for tag in tags)
        assert b"<script" not in data


@pytest.mark.req("002/23.3")
@pytest.mark.parametrize("form", Format)
def test_writing_ends_where_the_cap_is(form: Format) -> None:
    """A limit one byte below the picture's size is exceeded."""
    picture = replace(CANDLES, format=form)
    size = len(drawn(picture, CAP))

    assert len(drawn(picture, size)) == size
    with pytest.raises(CapExceededError):
        drawn(picture, size - 1)


def test_the_words_around_a_picture_are_all_there() -> None:
    """Title, subtitle, unit and source are shown, and the last value next to its line."""
    words = words_on(figure_of(LINE))

    assert {LINE.title, LINE.subtitle, LINE.unit, LINE.caption, "139.00"} <= set(words)


def test_lines_are_named_where_they_end_and_no_name_covers_another() -> None:
    """The names of five lines with the same end are placed below one another."""
    figure = figure_of(COMPARISON)
    figure.draw_without_rendering()

    labels = figure.axes[0].texts
    boxes = sorted((text.get_window_extent() for text in labels), key=lambda box: box.y0)
    assert [text.get_text().split()[0] for text in labels] == ["AAPL", "FB", "GOOG", "IBM", "MSFT"]
    assert all(low.y1 <= high.y0 + 1 for low, high in pairwise(boxes))
    assert all(box.x1 <= COMPARISON.width for box in boxes)


def test_a_drawdown_is_told_in_percent_and_its_deepest_point_by_date() -> None:
    """The axis has percent signs, and the point its value and day."""
    words = words_on(figure_of(EVERY_KIND["drawdown"]))

    assert "\N{MINUS SIGN}30%" in words
    assert any(word.startswith("\N{MINUS SIGN}39.0% on ") for word in words)


@pytest.mark.parametrize(("width", "height"), [(400, 260), (900, 1400), (2000, 260)])
@pytest.mark.parametrize("picture", EVERY_KIND.values(), ids=EVERY_KIND)
@pytest.mark.proof
def test_nothing_is_cut_off_and_no_dates_overlap(picture: Picture, width: int, height: int) -> None:
    """Nothing is cut off and no dates overlap, at any size and with long texts."""
    long = replace(picture, title="W" * 120, caption="source " * 40, width=width, height=height)
    figure = figure_of(long)
    figure.draw_without_rendering()

    axes = figure.axes[0]
    texts = [*figure.texts, *axes.texts, *axes.get_xticklabels(), *axes.get_yticklabels()]
    for text in texts:
        box = text.get_window_extent()
        assert box.x0 >= 0
        assert box.x1 <= width + 0.5, text.get_text()
        assert box.y0 >= 0
    dates = [label.get_window_extent() for label in axes.get_xticklabels()]
    assert all(left.x1 < right.x0 for left, right in pairwise(dates))


def test_large_prices_have_thousands_separators() -> None:
    """Large prices have separators on the axis and next to the line."""
    high = replace(
        LINE, series=(Series("X", tuple(value * 1000 for value in LINE.series[0].values)),)
    )

    words = words_on(figure_of(high))

    assert "139,000.00" in words
    assert "120,000" in words


def test_colours_are_told_from_paper_and_from_one_another() -> None:
    """Text in these colours has a contrast of at least 3 to 1 (WCAG, for graphics)."""
    assert len(set(COLOURS)) == len(COLOURS)
    for colour in COLOURS:
        assert (luminance(PAPER) + 0.05) / (luminance(colour) + 0.05) >= 3


def luminance(colour: str) -> float:
    """Return the relative luminance of a colour, as WCAG defines it."""
    channels = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in channels
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


@given(
    heights=st.lists(st.floats(0, 1000), max_size=5),
    distance=st.floats(1, 50),
)
def test_labels_are_moved_apart_in_their_order(heights: list[float], distance: float) -> None:
    """Afterwards any two labels keep the minimum distance."""
    moved = sorted(apart(heights, distance))

    assert len(moved) == len(heights)
    assert all(above - below >= distance - 1e-6 for below, above in pairwise(moved))


@pytest.mark.proof
def test_the_largest_picture_is_drawn_in_bounded_time() -> None:
    """The limits on values and pixels bound the CPU time."""
    days = tuple(range(700_000, 700_000 + MAX_POINTS // 5))
    lines = tuple(Series(str(at), tuple(50.0 + day % 37 for day in days)) for at in range(5))
    began = time.thread_time()
    drawn(replace(LINE, days=days, series=lines, width=2000, height=1400), CAP)

    assert time.thread_time() - began < 8


def test_a_picture_beyond_the_caps_cannot_be_made() -> None:
    """A picture beyond the limits cannot be created by any caller."""
    days = tuple(range(700_000, 700_001 + MAX_POINTS))
    with pytest.raises(ToolRefusedError):
        replace(LINE, days=days, series=(Series("", tuple(float(day) for day in days)),))
    for width, height in ((2001, 500), (900, 1401), (399, 500), (900, 0)):
        with pytest.raises(ValueError, match="too small or too large"):
            replace(LINE, width=width, height=height)
    with pytest.raises(ValueError, match="one value for each day"):
        replace(LINE, days=LINE.days[1:])


@settings(max_examples=8)
@given(
    values=st.lists(st.floats(1e-6, 1e12), min_size=2, max_size=30),
    kind=st.sampled_from([ChartKind.LINE, ChartKind.DRAWDOWN]),
)
def test_any_prices_can_be_drawn(values: list[float], kind: ChartKind) -> None:
    """Flat, tiny, huge and erratic prices are drawn."""
    sign = -1 if kind is ChartKind.DRAWDOWN else 1
    line = Series("X", tuple(sign * value for value in values))
    picture = replace(
        LINE, kind=kind, days=LINE.days[: len(values)], series=(line,), width=400, height=260
    )

    assert drawn(picture, CAP).startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("number", "form", "text"),
    [
        (120_000, ",.13g", "120,000"),
        (0.1 + 0.2, ",.13g", "0.3"),
        (-0.004, ",.2f", "0.00"),
        (-1234.5, ",.1f", "\N{MINUS SIGN}1,234.5"),
    ],
)
def test_numbers_have_separators_and_a_real_minus(number: float, form: str, text: str) -> None:
    """Zero never has a minus sign."""
    assert number_text(number, form) == text


def test_a_day_is_named_without_regard_to_the_language_of_the_system() -> None:
    """Dates are in English, with the day first."""
    assert short_date(date(2012, 3, 5).toordinal()) == "5 Mar 2012"


@pytest.mark.parametrize(
    ("length", "shown"), [(2, 2), (9, 4), (40, 4), (400, 4), (4000, 4), (20_000, 4)]
)
def test_dates_stand_below_the_axis_for_any_length_of_time(length: int, shown: int) -> None:
    """Labels are whole days, months or years, never hours."""
    days = (734_000, 734_000 + length - 1)
    figure = figure_of(replace(LINE, days=days, series=(Series("X", (1.0, 2.0)),)))
    figure.draw_without_rendering()

    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert len([label for label in labels if label]) >= shown
    assert not any(":" in label for label in labels)
