"""Reads anything that names one day, up to ``3 weeks after the first Monday of May 2025``.

Days inside other phrases are worked out here, with the tool's own arithmetic, so that one call
answers the whole question.
"""

from datetime import date

from app.adapters.providers.offline.reading.dates import date_words
from app.adapters.providers.offline.reading.dates.days import Day, Duration, on, relative, shifted
from app.adapters.providers.offline.reading.dates.durations import read_durations
from app.adapters.providers.offline.reading.dates.periods import read_month, read_year
from app.adapters.providers.offline.reading.dates.written_dates import read_written
from app.adapters.providers.offline.reading.words.cursor import Cursor
from app.adapters.providers.offline.reading.words.numerals import (
    NUMBER_BEGINNINGS,
    ORDINALS,
    ordinal,
)
from app.adapters.providers.offline.reading.words.tokens import Kind
from app.tools.dates import calculation
from app.tools.dates.refusal import DateRefusedError
from app.tools.dates.wording import WEEKDAYS

MAX_DEPTH = 5
"""Days named by means of other days."""
_MAX_NTH = 5
_LAST = -1
_NUMERIC = frozenset({Kind.NUMBER, Kind.ORDINAL, Kind.DATE})
DAY_BEGINNINGS = frozenset(
    {
        "in",
        "on",
        "the",
        "day",
        "business",
        "working",
        "work",
        "exactly",
        "(",
        "first",
        "next",
        "last",
        "previous",
        "final",
    }
).union(
    NUMBER_BEGINNINGS,
    ORDINALS,
    date_words.WEEKDAY_NAMES,
    date_words.MONTH_NUMBERS,
    date_words.AROUND.beginnings,
    date_words.RELATIVE.beginnings,
    date_words.NAMED_DAYS.beginnings,
    date_words.EDGES.beginnings,
)
"""The words with which a day can begin that does not begin with a digit."""


def cursor_has_no_day(cursor: Cursor) -> bool:
    """Tell from the next token alone that no day begins there."""
    return cursor.here.kind not in _NUMERIC and cursor.here.text not in DAY_BEGINNINGS


class DateTerms:
    """Reads days from a cursor."""

    def __init__(self, cursor: Cursor, today: date) -> None:
        self.cursor = cursor
        """Where the reading stands."""
        self.today = today
        """The day that relative words start from."""
        self._depth = 0

    def term(self, *, towards: int = 0) -> Day:
        """Read a day; ``towards`` places a day without a year (see ``read_written``)."""
        if self._depth >= MAX_DEPTH:
            raise self.cursor.ambiguous("it is nested too deeply")
        if cursor_has_no_day(self.cursor):
            raise self.cursor.misread()
        self._depth += 1
        try:
            found = self.cursor.first_of(
                lambda _: self._around_today(),
                lambda _: self._after_duration(),
                lambda _: self._next_to_another(),
                lambda _: self._in_period(),
                lambda _: self._weekday_near(towards),
                lambda at: read_written(at, self.today, towards),
            )
        finally:
            self._depth -= 1
        return self._with_sums(found)

    def _with_sums(self, found: Day) -> Day:
        """Read what may follow: ``2025-01-15 + 45 days``."""
        while (sum_of := self.cursor.attempt(_read_sum)) is not None:
            back, durations = sum_of
            found = self._moved(found, durations, back=back)
        return found

    def _moved(self, day: Day, durations: list[Duration], *, back: bool) -> Day:
        for duration in durations:
            day = shifted(self.cursor, day, duration.reversed() if back else duration)
        return day

    def _after_duration(self) -> Day:
        """``45 days after …``, ``3 weeks ago``, ``in 10 days``."""
        cursor, today = self.cursor, relative("today", self.today)
        inside = cursor.accept("in") is not None
        if cursor.at("the") and cursor.ahead().text in {"day", "date"}:
            cursor.take()
            cursor.take()
        durations = read_durations(cursor)
        if inside:
            cursor.accept("time")
            return self._moved(today, durations, back=False)
        if (word := cursor.accept("ago", "hence")) is not None:
            return self._moved(today, durations, back=word == "ago")
        back = self._direction()
        return self._moved(self.term(), durations, back=back)

    def _direction(self) -> bool:
        """Take ``after`` or ``before``, and tell whether it points back."""
        if date_words.LATER.read(self.cursor):
            return False
        return date_words.EARLIER.expect(self.cursor)

    def _around_today(self) -> Day:
        distance = date_words.AROUND.expect(self.cursor)
        return shifted(self.cursor, relative("today", self.today), Duration(distance, "days"))

    def _next_to_another(self) -> Day:
        """``the day after March 1, 2024``, ``the next working day after …``."""
        self.cursor.accept("the")
        self.cursor.accept("next", "first", "previous", "last")
        unit = date_words.UNITS.expect(self.cursor)[1]
        taken = self.cursor.before()
        if unit not in {"days", "business_days"} or taken is None or taken.text != "day":
            raise self.cursor.misread()
        back = self._direction()
        return self._moved(self.term(), [Duration(1, unit)], back=back)

    def _in_period(self) -> Day:
        """``the third Friday of May 2025``, ``the last day of February 2024``, ``the end of …``."""
        cursor = self.cursor
        cursor.accept("the")
        edge = date_words.EDGES.read(cursor)
        if edge is not None:
            return self._day_of_period(edge)
        nth = _LAST if cursor.accept("last", "final") else ordinal(cursor)
        if nth != _LAST and cursor.at("of") and cursor.ahead().text in {"this", "next", "last"}:
            weekday = None  # the 15th of next month
        else:
            weekday = None if cursor.accept("day", "date") else date_words.weekday(cursor)
        cursor.expect("of", "in")
        if weekday is None:
            return self._day_of_period(nth)
        return self._nth_weekday(weekday, nth)

    def _nth_weekday(self, weekday: str, nth: int) -> Day:
        period = self.cursor.attempt(lambda at: read_month(at, self.today))
        if period is None:  # of a year: its first ones are in January, its last in December
            year, month = read_year(self.cursor, self.today), 12 if nth == _LAST else 1
            if nth == _MAX_NTH:
                raise self.cursor.misread()
        else:
            year, month = period
        if nth > _MAX_NTH:
            raise self.cursor.misread()
        args = {
            "operation": "nth_weekday",
            "year": year,
            "month": month,
            "weekday": weekday,
            "nth": nth,
        }
        try:
            known = calculation.nth_weekday(year, month, WEEKDAYS.index(weekday), nth)
        except DateRefusedError:
            known = None  # the tool will say so
        return Day(args, known)

    def _day_of_period(self, nth: int) -> Day:
        """Read a month or a year, and return its nth day; -1 is the last."""
        if nth == _LAST and (around := self.cursor.attempt(lambda _: self._month_around())):
            return around
        period = self.cursor.attempt(lambda at: read_month(at, self.today))
        if period is None:
            return self._day_of_year(read_year(self.cursor, self.today), nth)
        year, month = period
        if nth == _LAST:
            args = {"operation": "end_of_month", "year": year, "month": month}
            return Day(args, calculation.end_of_month(year, month))
        if not 1 <= nth <= calculation.days_in_month(year, month):
            raise self.cursor.ambiguous("the month has no such day")
        return on(date(year, month, nth))

    def _month_around(self) -> Day:
        """``the month of 2024-11-08``; return the last day of it."""
        cursor = self.cursor
        cursor.accept("the")
        cursor.expect("month")
        cursor.expect("of", "for", "containing", "with", "in", "after")
        day = self.term()
        known = None
        if day.known is not None:
            known = calculation.end_of_month(day.known.year, day.known.month)
        return Day({"operation": "end_of_month", "date": day.reference(cursor)}, known)

    def _day_of_year(self, year: int, nth: int) -> Day:
        if nth == _LAST:
            return on(date(year, 12, 31))
        first = on(date(year, 1, 1))
        return first if nth == 1 else shifted(self.cursor, first, Duration(nth - 1, "days"))

    def _weekday_near(self, towards: int) -> Day:
        """``the first Friday after March 5, 2024``, ``next Monday``, ``(until) Monday``."""
        cursor = self.cursor
        cursor.accept("the")
        which = cursor.accept("first", "next", "last", "previous")
        weekday = date_words.weekday(cursor)
        if which not in {"last", "previous"} and date_words.LATER.read(cursor):
            return self._weekday_from(self.term(), weekday, forward=True)
        if which not in {"first", "next"} and date_words.EARLIER.read(cursor):
            return self._weekday_from(self.term(), weekday, forward=False)
        if which is None and towards and not self._goes_on():
            return self._weekday_from(relative("today", self.today), weekday, forward=towards > 0)
        if which not in {"next", "last"}:
            raise cursor.misread()
        self._refuse_this_week(weekday, forward=which == "next")
        return self._weekday_from(relative("today", self.today), weekday, forward=which == "next")

    def _goes_on(self) -> bool:
        """Tell whether a weekday is only the beginning of a whole date."""
        here = self.cursor.here
        names = here.text in {",", "the"} or here.text in date_words.MONTH_NUMBERS
        return names or here.kind in {Kind.NUMBER, Kind.ORDINAL}

    def _weekday_from(self, day: Day, weekday: str, *, forward: bool) -> Day:
        index, known = WEEKDAYS.index(weekday), None
        if day.known is not None:
            known = calculation.next_weekday(day.known, index, forward=forward)
        operation = "weekday_after" if forward else "weekday_before"
        args = {"operation": operation, "date": day.reference(self.cursor), "weekday": weekday}
        return Day(args, known)

    def _refuse_this_week(self, weekday: str, *, forward: bool) -> None:
        """``next Friday`` has one meaning only if this week has no Friday left."""
        distance = WEEKDAYS.index(weekday) - self.today.weekday()
        if (distance > 0) if forward else (distance < 0):
            word = "next" if forward else "last"
            raise self.cursor.ambiguous(
                f"'{word} {weekday}' can be the one of this week or of the {word}; give the date"
            )


def _read_sum(cursor: Cursor) -> tuple[bool, list[Duration]]:
    sign = cursor.expect("plus", "+", "minus", "-")
    return sign in {"minus", "-"}, read_durations(cursor)
