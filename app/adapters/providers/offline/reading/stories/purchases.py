"""Word problems with a price for each: ``Tickets cost $24 each. How much are 7 tickets?``.

A first clause tells what one thing comes to, the question asks for another number of the same
things. It works for whatever is told for each of something: prices, weights, wages.
"""

from collections.abc import Callable
from dataclasses import dataclass

from app.adapters.providers.offline.reading.dates.date_terms import DateTerms
from app.adapters.providers.offline.reading.stories.bills import read_with_share
from app.adapters.providers.offline.reading.sums.expressions import Expressions
from app.adapters.providers.offline.reading.sums.problems import read_end, solved
from app.adapters.providers.offline.reading.sums.time_units import (
    DAY_SECONDS,
    TIME_UNITS,
    in_unit,
)
from app.adapters.providers.offline.reading.words import formula
from app.adapters.providers.offline.reading.words.action import Reading
from app.adapters.providers.offline.reading.words.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.words.formula import Formula
from app.adapters.providers.offline.reading.words.frames import read_courtesies
from app.adapters.providers.offline.reading.words.things import (
    is_same,
    read_amount,
    read_count,
    read_thing,
    same_money,
    singular,
)


@dataclass(frozen=True, slots=True)
class _Rate:
    """What one of some things comes to."""

    amount: Formula
    thing: str
    """Empty if it is not said which."""


_SECONDS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}
_COME_TO: Phrases[bool] = Phrases(
    {
        "(cost|costs|weigh|weighs|is|are|come to|comes to|sell for|sells for)": True,
        "(is|are) (sold|priced|available) (at|for)": True,
    }
)
_EACH: Phrases[bool] = Phrases({"(each|apiece|a piece|per piece|per item|per unit)": True})
_PER: Phrases[bool] = Phrases({"(a|an|per|each|every|for each|for every|for a|for one)": True})
_IN_ALL: Phrases[bool] = Phrases({"(in total|altogether|together|in all)": True})
_SOMEBODY: Phrases[bool] = Phrases({"(i|we|you|he|she|they|somebody|someone|it)": True})
_HANDLES: Phrases[bool] = Phrases(
    {
        "(pay|pays|save|saves|spend|spends|charge|charges|use|uses|need|needs|drink|drinks)": True,
        "(earn|earns|get|gets|make|makes|read|reads)": False,
    }
)
"""What somebody does; False for what nobody does all day and every day."""
_HOW_MUCH: Phrases[bool] = Phrases(
    {
        "(how much|what) (do|does|would|will|must|should|did|can|is|are|were)": True,
        "(what is|what's|what would be) (the|) (total|) (cost|price|weight|amount|sum) (of|for)": (
            True
        ),
        "(what is|what's|how much is|how much are) (the price of|the price for|)": True,
        "(what is|what's) the (price|cost) (per|of each|for each)": False,
        "how much for": True,
    }
)
_FOR: Phrases[bool] = Phrases({"(for|in|over|after|on|during|within)": True})
_HAVE_TO: Phrases[bool] = Phrases({"(have|has|need) to": True})
_HOW_MANY: Phrases[bool] = Phrases({"how many": True})
_AFFORD: Phrases[bool] = Phrases({"(buy|get|afford|purchase) (for|with)": True})


def read_rate_question(dates: DateTerms) -> Reading:
    """Read a rate and then a question, or a question that has the rate in it."""
    expressions = Expressions(dates)
    cursor = dates.cursor
    read_courtesies(cursor)
    cursor.accept("if")
    problem = _Problem(expressions)
    found = cursor.first_of(lambda _: problem.told_first(), lambda _: problem.told_inside())
    return solved(expressions, found)


class _Problem:
    def __init__(self, expressions: Expressions) -> None:
        self._expressions = expressions
        self._cursor = expressions.cursor
        self._always = True

    def told_first(self) -> Formula:
        """``Tickets cost $24 each. How much are 7 tickets``."""
        rate = self._cursor.first_of(*_RATES)
        read_end(self._cursor)
        return self._cursor.first_of(
            lambda _: self._total(rate), lambda _: self._number_for_money(rate)
        )

    def told_inside(self) -> Formula:
        """``How much do 7 tickets cost at $24 each``."""
        cursor = self._cursor
        _HOW_MUCH.expect(cursor)
        self._paying()
        count = read_count(cursor)
        thing = read_thing(cursor)
        _COME_TO.read(cursor)
        cursor.expect("at", "for", "costing")
        amount = read_amount(cursor)
        if not _EACH.read(cursor):
            _PER.expect(cursor)
            self._same(thing)
        _COME_TO.read(cursor)
        return self._times(amount, count)

    def _total(self, rate: _Rate) -> Formula:
        if not _HOW_MUCH.expect(self._cursor):
            self._same(rate.thing)
            return rate.amount
        self._paying()
        quantity = self._quantity(rate)
        _COME_TO.read(self._cursor)
        _IN_ALL.read(self._cursor)
        total = self._times(rate.amount, quantity)
        share = self._cursor.attempt(read_with_share)
        if share is None:
            return total
        return self._expressions.checked(lambda: formula.scaled(total, *share))

    def _paying(self) -> None:
        cursor = self._cursor
        if _SOMEBODY.read(cursor):
            _HAVE_TO.read(cursor)
            self._always = _HANDLES.expect(cursor)
        _IN_ALL.read(cursor)
        _FOR.read(cursor)

    def _quantity(self, rate: _Rate) -> Formula:
        """Read how many of the things are asked about."""
        cursor = self._cursor
        if rate.thing == "day":
            measure = cursor.attempt(self._expressions.measures.read)
            if measure is not None:
                return measure
        count = read_count(cursor)
        time = cursor.attempt(lambda at: self._time(at, count, rate.thing))
        if time is not None:
            return time
        thing = read_thing(cursor)
        measured = rate.thing.startswith(f"{thing} of ")
        if rate.thing and not measured and not is_same(rate.thing, thing):
            raise cursor.misread()
        return count

    def _time(self, cursor: Cursor, count: Formula, thing: str) -> Formula:
        """Read ``2 weeks`` where something is told for each day; a working day has no 24 hours."""
        own, seconds = _SECONDS.get(thing, 0), TIME_UNITS.expect(cursor)
        alike = own == seconds or max(own, seconds) < DAY_SECONDS
        if not own or not (alike or (self._always and min(own, seconds) >= DAY_SECONDS)):
            raise cursor.misread()
        return in_unit(count, seconds, own)

    def _number_for_money(self, rate: _Rate) -> Formula:
        """``How many tickets can I buy for $100``: whole ones."""
        cursor = self._cursor
        _HOW_MANY.expect(cursor)
        self._same(rate.thing)
        cursor.expect("can", "could")
        _SOMEBODY.expect(cursor)
        _AFFORD.expect(cursor)
        money = read_amount(cursor)
        parts = self._expressions.checked(lambda: formula.divided(*same_money(money, rate.amount)))
        return Formula(f"floor({parts.text})")

    def _same(self, thing: str) -> None:
        if not is_same(thing, read_thing(self._cursor)):
            raise self._cursor.misread()

    def _times(self, amount: Formula, count: Formula) -> Formula:
        if count.text == "1":
            return amount
        return self._expressions.checked(lambda: formula.times(amount, count))


def _for_all(cursor: Cursor) -> _Rate:
    """``8 pens cost 13.60``."""
    count = read_count(cursor)
    thing = read_thing(cursor)
    _COME_TO.expect(cursor)
    amount = read_amount(cursor)
    _read_measured_in(cursor)
    _IN_ALL.read(cursor)
    return _Rate(amount if count.text == "1" else formula.divided(amount, count), thing)


def _for_each(cursor: Cursor) -> _Rate:
    """``Tickets cost $24 each``, ``A room costs 80 euros per night``."""
    cursor.accept("the", "a", "an")
    thing = read_thing(cursor)
    _COME_TO.expect(cursor)
    amount = read_amount(cursor)
    if _EACH.read(cursor):
        return _Rate(amount, thing)
    _PER.expect(cursor)
    return _Rate(amount, read_thing(cursor))


def _somebody_for_each(cursor: Cursor) -> _Rate:
    """``I earn 18.50 an hour``."""
    if not _SOMEBODY.read(cursor):
        read_thing(cursor)
    _HANDLES.expect(cursor)
    amount = read_amount(cursor)
    _PER.expect(cursor)
    return _Rate(amount, read_thing(cursor))


def _at_each(cursor: Cursor) -> _Rate:
    """``At 18.50 a day``, ``at $3 each``."""
    cursor.expect("at", "for", "with")
    amount = read_amount(cursor)
    if _EACH.read(cursor):
        return _Rate(amount, "")
    _PER.expect(cursor)
    return _Rate(amount, read_thing(cursor))


def _read_measured_in(cursor: Cursor) -> None:
    """Pass over the unit of a weight: ``3 boxes weigh 12 kg``."""
    if singular(cursor.here.text) in {"kilogram", "gram", "pound", "ton", "ounce", "g", "lb"}:
        cursor.take()


def _for_pack(cursor: Cursor) -> _Rate:
    """``A pack of 12 pens costs 9.60``."""
    cursor.expect("a", "one", "the")
    cursor.expect("pack", "packet", "box", "bag", "set", "case", "carton", "bundle", "tray")
    cursor.expect("of")
    count = read_count(cursor)
    thing = read_thing(cursor)
    _COME_TO.expect(cursor)
    return _Rate(formula.divided(read_amount(cursor), count), thing)


_RATES: tuple[Callable[[Cursor], _Rate], ...] = (
    _somebody_for_each,
    _for_each,
    _for_all,
    _at_each,
    _for_pack,
)
