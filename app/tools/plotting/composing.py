"""Turns prices into a picture: which words, which values, which candles."""

import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from app.tools.analysis.drawdown import drawdowns
from app.tools.plotting.candle import candles_of, period_for
from app.tools.plotting.picture import Format, Kind, Picture, Series, TooManyPointsError
from app.tools.plotting.wording import in_words
from app.tools.stocks.prices import DailyPrice, PriceSeries
from app.tools.stocks.refusal import StockRefusedError

MAX_TITLE_CHARS = 120
LEAST_DAYS = 2
AXIS_PIXELS = 110
"""About how much of the width is taken by numbers and margins."""
TITLES: Mapping[Kind, str] = MappingProxyType(
    {Kind.LINE: "closing price", Kind.CANDLES: "price range", Kind.DRAWDOWN: "drawdown"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wish:
    """What the caller of the plotter asked for; sizes in pixels."""

    kind: Kind
    format: Format
    width: int
    height: int
    adjusted: bool
    title: str | None = None


def composed(series: Sequence[PriceSeries], wish: Wish) -> Picture:
    """Return the picture of one series, or of several from a common 100.

    Raises:
        StockRefusedError: there are too few days to draw, or too many.
    """
    try:
        if wish.kind is Kind.CANDLES:
            return _candles(series[0], wish)
        if wish.kind is Kind.DRAWDOWN:
            return _drawdown(series[0], wish)
        return _line(series[0], wish) if len(series) == 1 else _comparison(series, wish)
    except TooManyPointsError as error:
        raise StockRefusedError(f"{error}: choose narrower dates.", code="too_large") from error


def clean_title(title: str) -> str:
    """Return a title on one line: control and format characters become spaces, and it is cut."""
    visible = "".join(" " if unicodedata.category(sign)[0] == "C" else sign for sign in title)
    return " ".join(visible.split())[:MAX_TITLE_CHARS].rstrip()


def _line(series: PriceSeries, wish: Wish) -> Picture:
    values = tuple(_close(day, wish) for day in series.days)
    about = f"{_price(wish)} close"
    return _picture(wish, [series], series.days, [Series(series.symbol, values)], about)


def _comparison(several: Sequence[PriceSeries], wish: Wish) -> Picture:
    """Put several series on their common days, each as a share of its first value there."""
    shared = set.intersection(*({day.day for day in series.days} for series in several))
    on_shared = [[day for day in series.days if day.day in shared] for series in several]
    lines = []
    for series, days in zip(several, on_shared, strict=True):
        base = _close(days[0], wish) if days else 1.0
        values = tuple(100 * _close(day, wish) / base for day in days)
        lines.append(Series(series.symbol, values))
    first = f"{in_words(on_shared[0][0].day.toordinal())} = 100" if on_shared[0] else ""
    return _picture(
        wish, several, on_shared[0], lines, f"{_price(wish)} close, relative", unit=first
    )


def _drawdown(series: PriceSeries, wish: Wish) -> Picture:
    falls = drawdowns([_close(day, wish) for day in series.days])
    values = tuple(-100 * fall for fall in falls)
    about = f"{_price(wish)} close below its highest so far"
    line = [Series(series.symbol, values)]
    return _picture(wish, [series], series.days, line, about, unit="percent")


def _candles(series: PriceSeries, wish: Wish) -> Picture:
    period = period_for(series.first.day, series.last.day, wish.width - AXIS_PIXELS)
    candles = candles_of(series.days, period, adjusted=wish.adjusted)
    lines = [
        Series(name, tuple(getattr(candle, name) for candle in candles))
        for name in ("open", "high", "low", "close")
    ]
    about = f"{_price(wish)} prices, {period.name}: blue rises, orange falls"
    days = [candle.day.toordinal() for candle in candles]
    return _picture(
        wish, [series], series.days, lines, about, ordinals=days, day_width=period.width_days
    )


def _picture(
    wish: Wish,
    several: Sequence[PriceSeries],
    days: Sequence[DailyPrice],
    lines: Sequence[Series],
    about: str,
    *,
    unit: str | None = None,
    ordinals: Sequence[int] | None = None,
    day_width: float = 1.0,
) -> Picture:
    if len(days) < LEAST_DAYS:
        raise StockRefusedError(
            f"A picture needs at least {LEAST_DAYS} trading days, and there are {len(days)}:"
            " choose wider dates.",
            code="too_few_points",
        )
    first, last = (in_words(day.day.toordinal()) for day in (days[0], days[-1]))
    names = ", ".join(series.symbol for series in several)
    sources = " and ".join(dict.fromkeys(_credit(series.source) for series in several))
    return Picture(
        kind=wish.kind,
        format=wish.format,
        title=wish.title or f"{names}: {_subject(wish, compared=len(several) > 1)}",
        subtitle=f"{about} \N{MIDDLE DOT} {first} \N{EN DASH} {last}",
        unit=several[0].currency if unit is None else unit,
        caption=f"Source: {sources} \N{MIDDLE DOT} {len(days):,} trading days",
        days=tuple(ordinals or (day.day.toordinal() for day in days)),
        series=tuple(lines),
        day_width=day_width,
        width=wish.width,
        height=wish.height,
    )


def _credit(source: str) -> str:
    """Write ``packaged: a set`` as ``a set, packaged``, which reads better after a colon."""
    how, colon, what = source.partition(": ")
    return f"{what}, {how}" if colon else source


def _price(wish: Wish) -> str:
    return "Adjusted" if wish.adjusted else "As-traded"


def _close(day: DailyPrice, wish: Wish) -> float:
    return day.adjusted_close if wish.adjusted else day.close


def _subject(wish: Wish, *, compared: bool) -> str:
    """Return what the picture is of; an adjusted price is not the one that was paid on the day."""
    adjusted = wish.kind is Kind.LINE and wish.adjusted
    return f"{'adjusted ' * adjusted}{TITLES[wish.kind]}{'s compared' * compared}"
