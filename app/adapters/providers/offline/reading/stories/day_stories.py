"""Word problems about a day: something begins, lasts so long, and its end is asked for.

``I bought a phone on 20 August 2023 with a warranty of 2 years. When does the warranty end?`` The
words of the story are free, but for those that would change how the days are counted.
"""

from typing import Any

from app.adapters.providers.offline.reading.dates import date_words
from app.adapters.providers.offline.reading.dates.calendar_action import calendar_action
from app.adapters.providers.offline.reading.dates.date_terms import DateTerms
from app.adapters.providers.offline.reading.dates.days import Day, Duration, shifted
from app.adapters.providers.offline.reading.dates.durations import read_durations
from app.adapters.providers.offline.reading.words.action import Action
from app.adapters.providers.offline.reading.words.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.words.frames import read_courtesies
from app.adapters.providers.offline.reading.words.things import words
from app.adapters.providers.offline.reading.words.tokens import Kind

_WEIGHTY = words(
    "not no never without except excluding exclude only before ago earlier prior until since "
    "another extra more less fewer half every each other again plus minus weekends weekend holiday "
    "holidays business working if unless or either inclusive including counting twice double "
    "extended shortened postponed delayed renewed already left remaining ended "
    "later sooner day days week weeks month months year years fortnight fortnights returned"
)
_MAX_WORDS = 20
_LASTS: Phrases[bool] = Phrases(
    {
        "(for|of|within|in|after|lasts|lasting|takes|last|take|lasted|is|with)": True,
        "(that|which) (lasts|takes|is)": True,
        "(is|are) (valid|good|due|payable|ready|over|finished) (for|in|within|after)": True,
        "(and|it) (lasts|takes|is valid for|expires in|expires after|ends after)": True,
        "(a|the)": True,
    }
)
_ENDS: Phrases[bool] = Phrases(
    {
        "(end|expire|run out|finish|be due|be over|be finished|be ready|be paid|run until|be up|"
        "be back|arrive|be delivered|stop|have to be paid|last until|be|come back)": True,
        "(due|over|finished|up|ready|payable|finished|done)": True,
    }
)
_WHEN: Phrases[bool] = Phrases(
    {
        "when (does|will|is|must|do|are|should|would|did|was)": True,
        "(on|by|) (what|which) (day|date) (does|will|is|must|do|are|should|would|did|was)": True,
    }
)
_ON_WEEKDAY: Phrases[bool] = Phrases(
    {
        "(on|) (what|which) (weekday|day of the week) (does|will|is|must|do|did|would)": True,
    }
)
_END_DATE: Phrases[bool] = Phrases(
    {
        "(what is|what's|when is|what will be) (the|its) (due|end|expiry|expiration|final|delivery|"
        "return|last) (date|day)": True,
        "(what is|what's|when is) (the|its) deadline": True,
    }
)


def read_day_story(dates: DateTerms) -> Action:
    """Read a beginning, a length, and the question when, or on which weekday, it ends."""
    story = _Story(dates)
    read_courtesies(dates.cursor)
    if not story.read_inside():
        story.read()
        story.read_question()
    return calendar_action(dates.cursor, story.asked())


class _Story:
    """The facts of a story: one day and one length of time."""

    def __init__(self, dates: DateTerms) -> None:
        self._dates = dates
        self._cursor = dates.cursor
        self._day: Day | None = None
        self._durations: list[Duration] | None = None
        self._weekday = False
        """True if only the weekday is asked for."""

    def asked(self) -> dict[str, Any]:
        """Return the operation that finds what is asked for."""
        day = self.end()
        if not self._weekday:
            return dict(day.args)
        return {"operation": "weekday", "date": day.reference(self._cursor)}

    def read_inside(self) -> bool:
        """Read ``when does a 90-day visa that starts on 2025-05-01 end``."""
        if not _WHEN.read(self._cursor):
            return False
        self.read()
        _ENDS.expect(self._cursor)
        return True

    def read(self) -> None:
        """Read the story, up to the question or to its last verb."""
        cursor = self._cursor
        free = 0
        while not cursor.at("when", "what", "which") and not self._asks_on():
            if self._durations and self._day and self._at_end():
                break
            if self._day is None and (day := cursor.attempt(lambda _: self._beginning())):
                self._day = day
            elif self._durations is None and (length := cursor.attempt(_length)):
                self._durations = length
            elif cursor.at(",", ".", ";", "-", "'"):
                cursor.take()
            elif self._is_free():
                cursor.take()
                free += 1
            else:
                raise cursor.misread()
        if self._day is None or self._durations is None or not 0 < free <= _MAX_WORDS:
            raise cursor.misread()

    def _asks_on(self) -> bool:
        """Tell whether ``on which day`` or ``by what date`` comes next."""
        return self._cursor.at("on", "by") and self._cursor.ahead().text in {"which", "what"}

    def _beginning(self) -> Day:
        self._cursor.accept("on", "from", "dated")
        return self._dates.term()

    def read_question(self) -> None:
        """Read ``when does the warranty end`` or ``what is the due date, 45 days after …``."""
        cursor = self._cursor
        if _END_DATE.read(cursor):
            for _ in range(2):
                cursor.accept("of", "for", "the")
            self._name()
        else:
            self._weekday = _ON_WEEKDAY.read(cursor) is not None
            if not self._weekday:
                _WHEN.expect(cursor)
            self._name()
            _ENDS.expect(cursor)
        if cursor.accept(",") and self._dates.term() != self.end():
            raise cursor.ambiguous("the day it asks for is not the one it tells of")

    def _name(self) -> None:
        """Pass over the name of what ends: ``the warranty``, ``it``, ``my library book``."""
        for _ in range(4):
            if not self._is_free() or self._at_end():
                return
            self._cursor.take()

    def _is_free(self) -> bool:
        """Tell whether the next word may stand in a story without changing its days."""
        here = self._cursor.here
        dated = here.text in date_words.MONTH_NUMBERS or here.text in date_words.WEEKDAY_NAMES
        return here.kind is Kind.WORD and here.text not in _WEIGHTY and not dated

    def _at_end(self) -> bool:
        place = self._cursor.place()
        ends = _ENDS.read(self._cursor) is not None
        self._cursor.back(place)
        return ends

    def end(self) -> Day:
        """Return the day on which it ends."""
        if self._day is None or self._durations is None:
            raise self._cursor.misread()
        day = self._day
        for duration in self._durations:
            day = shifted(self._cursor, day, duration)
        return day


def _length(cursor: Cursor) -> list[Duration]:
    """Read ``for 3 weeks``, ``a warranty of 2 years``, ``a 14-day trial``, ``9 days later``."""
    _LASTS.read(cursor)
    found = read_durations(cursor)
    cursor.accept("later")
    return found
