"""Questions that count weekdays: ``How many Mondays are there in May 2024?``.

Both ends of a span are counted. Between two days that is said only if it matters: if one of them
is such a weekday itself, the question has to say that both are included.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any

from app.adapters.providers.offline.reading.dates.calendar_action import calendar_action
from app.adapters.providers.offline.reading.dates.date_terms import DateTerms
from app.adapters.providers.offline.reading.dates.days import Day
from app.adapters.providers.offline.reading.dates.stock_periods import named_period
from app.adapters.providers.offline.reading.words.action import Action
from app.adapters.providers.offline.reading.words.cursor import Phrases
from app.adapters.providers.offline.reading.words.frames import read_courtesies
from app.tools.dates.wording import WEEKDAYS

_BUSINESS = ""
_KINDS: Phrases[str] = Phrases(
    {f"{name.lower()}s": name for name in WEEKDAYS}
    | {"(business|working|work) days": _BUSINESS, "(weekdays|workdays)": _BUSINESS}
)
"""The weekday that is counted; empty for Monday to Friday."""
TOTAL_WORDS = _KINDS.beginnings
"""One of these is in every such question."""
_HOW_MANY: Phrases[bool] = Phrases(
    {
        "how many": True,
        "(what is|what's|) (the|) number of": True,
        "(count|find|calculate) (the|) (number of|)": True,
    }
)
_THERE: Phrases[bool] = Phrases(
    {
        "(are|were|is|was|will be) (there|)": True,
        "will there be": True,
        "(there|) (are|were)": True,
        "(fall|fell|lie|does|did|do|has|have)": True,
    }
)
_INCLUSIVE: Phrases[bool] = Phrases(
    {
        "inclusive": True,
        "(both|) (dates|days|ends|of them|) (included|inclusive)": True,
        "(including|counting) both (dates|days|ends|of them|)": True,
        "with both (dates|days|ends|) (included|counted)": True,
    }
)


@dataclass(frozen=True, slots=True)
class _Span:
    """The first and the last day of a count."""

    start: Day
    end: Day
    through: bool
    """True if the question says that the last day counts."""


def read_weekday_total(dates: DateTerms) -> Action:
    """Read ``how many Mondays are there in May 2024``, ``working days from A to B inclusive``."""
    cursor = dates.cursor
    read_courtesies(cursor)
    _HOW_MANY.expect(cursor)
    kind = _KINDS.expect(cursor)
    while _THERE.read(cursor):
        pass
    args = cursor.first_of(lambda _: _in_period(dates), lambda _: _between(dates, kind))
    counted = {"operation": "count_weekday", "weekday": kind}
    if kind == _BUSINESS:
        counted = {"operation": "count_business_days"}
    return calendar_action(cursor, {**counted, **args})


def _in_period(dates: DateTerms) -> Mapping[str, Any]:
    """Read ``in May 2024`` or the ``May 2024 have`` of ``does May 2024 have``."""
    cursor = dates.cursor
    cursor.accept("in", "during", "of")
    period = named_period(dates)
    cursor.accept("have")
    if period.start is None or period.end is None:
        raise cursor.misread()
    return {"date": period.start.isoformat(), "end_date": period.end.isoformat()}


def _between(dates: DateTerms, kind: str) -> Mapping[str, Any]:
    span = _span(dates)
    cursor = dates.cursor
    cursor.accept(",", "(")
    inclusive = _INCLUSIVE.read(cursor) is not None or span.through
    cursor.accept(")")
    if not inclusive and any(_may_count(day.known, kind) for day in (span.start, span.end)):
        raise cursor.ambiguous(
            "the first or the last day may be counted or not; say 'both included'"
        )
    return {"date": span.start.reference(cursor), "end_date": span.end.reference(cursor)}


def _span(dates: DateTerms) -> _Span:
    cursor = dates.cursor
    opening = cursor.expect("between", "from")
    start = dates.term()
    joins = ("and",) if opening == "between" else ("to", "until", "till", "through")
    through = cursor.expect(*joins) == "through"
    return _Span(start, dates.term(), through)


def _may_count(day: date | None, kind: str) -> bool:
    """Tell whether a day at an end is one of those that are counted, as far as it is known."""
    if day is None:
        return True
    return day.weekday() < 5 if kind == _BUSINESS else WEEKDAYS[day.weekday()] == kind
