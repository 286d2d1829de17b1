"""What stands at the ticks of an axis."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import count, takewhile

from matplotlib.ticker import Formatter

from app.tools.plotting.wording import MONTHS, plain

EPOCH = date(1970, 1, 1).toordinal()
"""What is taken from an ordinal to get a place on the axis of days."""
DAY_STEPS, WEEK_STEPS = (1, 2), (7, 14)
MONTH_STEPS = (1, 2, 3, 6)
YEAR_STEPS = (1, 2, 5, 10, 20, 50)
DAY_PIXELS, MONTH_PIXELS, YEAR_PIXELS = 74.0, 52.0, 52.0
"""How much room the label of a day, a month or a year needs."""
MONDAY = date(2001, 1, 1).toordinal()


@dataclass(frozen=True, slots=True)
class DateTicks:
    """Where the ticks of an axis of days are, and what stands there."""

    days: tuple[date, ...]
    labels: tuple[str, ...]

    def places(self) -> list[int]:
        """Return where the ticks stand on the axis, in days since 1970."""
        return [day.toordinal() - EPOCH for day in self.days]


def date_ticks(first: int, last: int, pixels: float) -> DateTicks:
    """Return the finest round ticks from ``first`` to ``last`` (ordinals) that fit on ``pixels``.

    They stand on days, Mondays, first days of months or New Year's days. The year stands below the
    first label and wherever it changes.
    """
    start, end = date.fromordinal(first), date.fromordinal(last)
    for room, days, years_alone in _candidates(start, end):
        if days and len(days) * room <= pixels:
            return DateTicks(days, tuple(_labels(days, room == DAY_PIXELS, years_alone)))
    return DateTicks((start,), (str(start.year),))


def _candidates(start: date, end: date) -> Iterator[tuple[float, tuple[date, ...], bool]]:
    """Yield the ticks to choose from, the finest first, each with the room of a label."""
    first, last = start.toordinal(), end.toordinal()
    for step in DAY_STEPS:
        yield DAY_PIXELS, _from_ordinals(range(first, last + 1, step)), False
    for step in WEEK_STEPS:
        monday = first + (MONDAY - first) % 7
        yield DAY_PIXELS, _from_ordinals(range(monday, last + 1, step)), False
    for step in MONTH_STEPS:
        yield MONTH_PIXELS, _firsts_of_months(start, end, step), False
    for step in YEAR_STEPS:
        years = range(start.year, end.year + 1)
        days = (date(year, 1, 1) for year in years if year % step == 0)
        yield YEAR_PIXELS, tuple(day for day in days if start <= day), True


def _from_ordinals(ordinals: range) -> tuple[date, ...]:
    # More ticks than any picture has room for need not be made.
    return tuple(date.fromordinal(day) for day in ordinals) if len(ordinals) < 100 else ()


def _firsts_of_months(start: date, end: date, step: int) -> tuple[date, ...]:
    months = (
        date(start.year + month // 12, month % 12 + 1, 1)
        for month in count((start.month - 1 + step - 1) // step * step, step)
    )
    return tuple(day for day in takewhile(lambda day: day <= end, months) if day >= start)


def _labels(days: Iterable[date], with_day: bool, years_alone: bool) -> Iterator[str]:
    before = None
    for day in days:
        if years_alone:
            yield str(day.year)
            continue
        month = MONTHS[day.month - 1]
        label = f"{day.day} {month}" if with_day else month
        yield label if day.year == before else f"{label}\n{day.year}"
        before = day.year


class NumberLabels(Formatter):
    """Numbers with thousands separators and as many decimals as tell the ticks apart."""

    def __init__(self, suffix: str = "") -> None:
        self._suffix = suffix

    def __call__(self, x: float, pos: int | None = None) -> str:
        """Return the label of one tick."""
        return plain(x, 2) + self._suffix

    def format_ticks(self, values: Sequence[float]) -> list[str]:
        """Return the labels of all ticks."""
        for decimals in range(5):
            if all(
                abs(round(value, decimals) - value) < 1e-9 * max(1, abs(value)) for value in values
            ):
                break
        return [plain(value, decimals) + self._suffix for value in values]
