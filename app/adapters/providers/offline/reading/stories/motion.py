"""Word problems about going somewhere: distance, time and speed, two of which are given."""

from collections.abc import Mapping
from dataclasses import dataclass

from app.adapters.providers.offline.reading.dates.date_terms import DateTerms
from app.adapters.providers.offline.reading.sums.expressions import Expressions
from app.adapters.providers.offline.reading.sums.problems import read_end, solved
from app.adapters.providers.offline.reading.sums.time_units import TIME_UNITS, in_unit
from app.adapters.providers.offline.reading.words import formula
from app.adapters.providers.offline.reading.words.action import Reading
from app.adapters.providers.offline.reading.words.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.words.formula import Formula
from app.adapters.providers.offline.reading.words.frames import read_courtesies
from app.adapters.providers.offline.reading.words.numerals import read_number
from app.adapters.providers.offline.reading.words.things import read_thing

_HOUR = 3600
_LENGTHS: Mapping[str, str] = {
    "(km|kilometers|kilometres|kilometer|kilometre|kms)": "km",
    "(mile|miles|mi)": "mile",
    "(m|meter|meters|metre|metres)": "m",
    "(foot|feet|ft)": "foot",
}
_LENGTH: Phrases[str] = Phrases(_LENGTHS)
_PER_HOUR: Phrases[str] = Phrases(
    {"(kph|kmh|kmph)": "km", "mph": "mile", "km / h": "km", "(m / s|mps)": "m"}
)
_PER: Phrases[bool] = Phrases({"(per|an|a|each|every|/)": True})
_GOES: Phrases[bool] = Phrases(
    {
        "(go|goes|travel|travels|drive|drives|run|runs|walk|walks|fly|flies|cycle|cycles|ride|rides"
        "|move|moves|cover|covers|get|gets|sail|sails|went|travelled|traveled|drove|ran|walked|flew"
        "|covered|cycled)": True,
        "(is|was) (going|travelling|traveling|driving|running|walking|flying|moving|cycling)": True,
    }
)
_WHO: Phrases[bool] = Phrases({"(i|we|you|he|she|it|they|someone|somebody)": True})
_DO: Phrases[bool] = Phrases({"(does|do|did|will|would|can|could)": True})
_HOW_FAR: Phrases[bool] = Phrases({"how far": True, "what distance": True})
_SPEED: Phrases[bool] = Phrases(
    {
        "(what is|what's|what was|find|calculate) (its|the|his|her|their|my|) (average|) speed "
        "(of|)": True,
        "how fast (is|does|do|did|was)": True,
    }
)
_ON_AVERAGE: Phrases[bool] = Phrases({"(on average|going|travelling|driving)": True})
_JOURNEY: Phrases[bool] = Phrases({"(trip|journey|drive|ride|walk|flight|route|distance)": True})
_HOW_LONG: Phrases[bool] = Phrases(
    {
        "how long (does|do|did|will|would) (it|) (take|need) (to|)": True,
        "how (long|many hours) (does|do|did|will|would)": True,
    }
)
_TAKES: Phrases[bool] = Phrases({"(take|need) (to|for|)": True})
_IN: Phrases[bool] = Phrases({"(in|for|after|within|during)": True})


@dataclass(frozen=True, slots=True)
class _Distance:
    count: Formula
    unit: str


@dataclass(frozen=True, slots=True)
class _Speed:
    count: Formula
    unit: str
    seconds: int
    """Of the unit of time."""


@dataclass(frozen=True, slots=True)
class _Time:
    count: Formula
    seconds: int


def read_motion(dates: DateTerms) -> Reading:
    """Read ``how far does a train go in 2.5 hours at 96 km per hour`` and the like."""
    cursor, expressions = dates.cursor, Expressions(dates)
    read_courtesies(cursor)
    cursor.accept("if")
    trip = _Trip(cursor)
    cursor.first_of(lambda _: trip.asked_first(), lambda _: trip.told_first())
    return solved(expressions, expressions.checked(trip.answer))


class _Trip:
    """What a question tells about a trip, and what it asks."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._forget()

    def _forget(self) -> None:
        self._known: list[_Distance | _Speed | _Time] = []
        self._asks = ""

    def asked_first(self) -> bool:
        """``How far does a train go in 2.5 hours at 96 km per hour``."""
        self._forget()
        self._ask()
        self._tell()
        return True

    def told_first(self) -> bool:
        """``A car goes 60 km in 1 hour. How far does it go in 3 hours``."""
        self._forget()
        self._who()
        _GOES.expect(self._cursor)
        self._tell()
        read_end(self._cursor)
        self._ask()
        self._tell(least=0)
        return True

    def _who(self) -> None:
        if not _WHO.read(self._cursor):
            self._cursor.accept("a", "an", "the")
            read_thing(self._cursor)

    def _ask(self) -> None:
        cursor = self._cursor
        if _HOW_FAR.read(cursor):
            self._asks = "distance"
            if _DO.read(cursor):
                self._who()
                _GOES.expect(cursor)
            return
        if _SPEED.read(cursor):
            self._asks = "speed"
            cursor.attempt(self._subject)
            _ON_AVERAGE.read(cursor)
            cursor.accept("that", "which", "if", "when")
            cursor.attempt(self._subject)
            _GOES.read(cursor)
            return
        _HOW_LONG.expect(cursor)
        self._asks = "time"
        if cursor.attempt(lambda _: self._journey()) is None:
            cursor.attempt(self._subject)
        _TAKES.read(cursor)
        _GOES.read(cursor)

    def _journey(self) -> bool:
        """Read ``a 240 km trip``."""
        self._cursor.expect("a", "the")
        fact = _read_fact(self._cursor)
        _JOURNEY.expect(self._cursor)
        self._known.append(fact)
        return True

    def _subject(self, _: Cursor) -> bool:
        self._who()
        return True

    def _tell(self, least: int = 1) -> None:
        while (fact := self._cursor.attempt(_read_fact)) is not None:
            self._known.append(fact)
        if len(self._known) < least:
            raise self._cursor.misread()

    def answer(self) -> Formula:
        """Return what is asked for, from exactly what is needed for it."""
        distances = [fact for fact in self._known if isinstance(fact, _Distance)]
        speeds = [fact for fact in self._known if isinstance(fact, _Speed)]
        times = [fact for fact in self._known if isinstance(fact, _Time)]
        shape = (self._asks, len(distances), len(speeds), len(times))
        if shape == ("distance", 0, 1, 1):
            return formula.times(speeds[0].count, _in(times[0], speeds[0].seconds))
        if shape == ("distance", 1, 0, 2):
            speed = formula.divided(distances[0].count, times[0].count)
            return formula.times(speed, _in(times[1], times[0].seconds))
        if shape == ("speed", 1, 0, 1):
            seconds = _HOUR if times[0].seconds != 1 else 1
            return formula.divided(distances[0].count, _in(times[0], seconds))
        if shape == ("time", 1, 1, 0) and distances[0].unit == speeds[0].unit:
            return formula.divided(distances[0].count, speeds[0].count)
        raise self._cursor.misread()


def _in(time: _Time, seconds: int) -> Formula:
    return in_unit(time.count, time.seconds, seconds)


def _read_fact(cursor: Cursor) -> _Distance | _Speed | _Time:
    cursor.accept(",")
    if not _IN.read(cursor):
        cursor.accept("at", "with", "of")
    cursor.accept("a", "an", "the")
    cursor.accept("average", "constant", "steady")
    if cursor.accept("speed"):
        cursor.expect("of")
    count = cursor.attempt(_one) or read_number(cursor)
    if (unit := _PER_HOUR.read(cursor)) is not None:
        return _Speed(count, unit, 1 if unit == "m" else _HOUR)
    if (unit := _LENGTH.read(cursor)) is not None:
        if _PER.read(cursor):
            return _Speed(count, unit, _time_unit(cursor))
        return _Distance(count, unit)
    return _Time(count, TIME_UNITS.expect(cursor))


def _time_unit(cursor: Cursor) -> int:
    if cursor.accept("h"):
        return _HOUR
    return TIME_UNITS.expect(cursor)


def _one(cursor: Cursor) -> Formula:
    """Read the article of ``in an hour``, which stands for one."""
    before = cursor.before()
    if before is None or before.text not in {"a", "an"}:
        raise cursor.misread()
    if cursor.here.text not in {"hour", "minute", "second", "day", "week"}:
        raise cursor.misread()
    return Formula("1")
