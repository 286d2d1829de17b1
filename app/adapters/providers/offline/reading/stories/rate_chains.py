"""Word problems with one rate after another: ``$18.50 an hour and 38 hours a week``.

Each rate leads from one unit to the next, until the one that is asked for is reached. A day is made
of hours and a week of days only where the problem says of how many.
"""

from dataclasses import dataclass

from app.adapters.providers.offline.reading.dates.date_terms import DateTerms
from app.adapters.providers.offline.reading.dates.spans import (
    UNITS,
    Span,
    in_span,
    read_per,
    read_span_of_time,
)
from app.adapters.providers.offline.reading.sums.expressions import Expressions
from app.adapters.providers.offline.reading.sums.problems import read_end, solved
from app.adapters.providers.offline.reading.words import formula
from app.adapters.providers.offline.reading.words.action import Reading
from app.adapters.providers.offline.reading.words.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.words.formula import PLAIN, Formula
from app.adapters.providers.offline.reading.words.frames import read_courtesies
from app.adapters.providers.offline.reading.words.holders import read_holder, read_joint
from app.adapters.providers.offline.reading.words.things import read_amount, words

_DOES = words(
    "earns earn earned makes make works work worked gets get pays pay is costs cost charges charge "
    "saves save spends spend trains train practises practise sleeps sleep studies study"
)
_HOW_MUCH: Phrases[bool] = Phrases(
    {
        "(how much money|how much|what) (do|does|did|will|would)": True,
        "how much is (that|it)": False,
    }
)
_FOR: Phrases[bool] = Phrases({"(in|for|over|during|after|with|within)": True})
_DO: Phrases[bool] = Phrases({"(do|does|did|will|would)": True})
_CONVERTS = frozenset({"clock", "year"})
"""Scales in which a rate for one unit is a rate for all."""


@dataclass(frozen=True, slots=True)
class _Rate:
    """So much of something, or of a unit of time, for one of another unit."""

    amount: Formula
    of: Span | None
    per: Span | None
    """None for a number alone: ``38 hours``."""


def read_rate_chain(dates: DateTerms) -> Reading:
    """Read ``I earn 20 dollars an hour and work 35 hours. How much do I earn``."""
    cursor, expressions = dates.cursor, Expressions(dates)
    read_courtesies(cursor)
    cursor.accept("if")
    rates = [_told(cursor)]
    while (more := cursor.attempt(_told_more)) is not None:
        rates.append(more)
    read_end(cursor)
    of, given = cursor.first_of(_asked_money, _asked_time)
    return solved(expressions, expressions.checked(lambda: _chained(cursor, rates, of, given)))


def _told(cursor: Cursor) -> _Rate:
    """``Tom earns $18.50 an hour``."""
    read_holder(cursor, _DOES)
    cursor.expect(*_DOES)
    cursor.accept("paid", "for")
    return _rate(cursor)


def _told_more(cursor: Cursor) -> _Rate:
    """``and works 38 hours a week``, ``, 5 days a week``."""
    read_joint(cursor)
    if cursor.attempt(lambda at: read_holder(at, _DOES)) is not None:
        cursor.expect(*_DOES)
    else:
        cursor.accept(*_DOES)
    cursor.accept("for")
    return _rate(cursor)


def _rate(cursor: Cursor) -> _Rate:
    amount = read_amount(cursor)
    of = UNITS.read(cursor) if amount.quantity == PLAIN else None
    per = cursor.attempt(read_per)
    if of is None and per is None:
        raise cursor.misread()
    return _Rate(amount, of, per)


_Asked = tuple[Span | None, tuple[Formula, Span] | None]


def _asked_money(cursor: Cursor) -> _Asked:
    """``How much does he earn in a week``, ``how much is that a year``."""
    if _HOW_MUCH.expect(cursor):
        read_holder(cursor, _DOES)
        cursor.expect(*_DOES)
    return None, _given(cursor)


def _asked_time(cursor: Cursor) -> _Asked:
    """``How many hours do I work in 4 weeks``."""
    cursor.expect("how")
    cursor.expect("many")
    of = UNITS.expect(cursor)
    if cursor.accept("is", "are"):
        cursor.expect("that")
    else:
        _DO.expect(cursor)
        read_holder(cursor, _DOES)
        cursor.expect(*_DOES)
    return of, _given(cursor)


def _given(cursor: Cursor) -> tuple[Formula, Span] | None:
    if (per := cursor.attempt(read_per)) is not None:
        return Formula("1"), per
    if not _FOR.read(cursor):
        return None
    return read_span_of_time(cursor)


def _chained(
    cursor: Cursor, rates: list[_Rate], of: Span | None, given: tuple[Formula, Span] | None
) -> Formula:
    """Return the product of the rates from what is asked for to what is given."""
    left = list(rates)
    first = _next(left, of)
    if first is None:
        raise cursor.misread()
    found, unit = first.amount, first.per
    while unit is not None and (following := _next(left, unit)) is not None:
        count = in_span(following.amount, following.of or unit, unit)
        found, unit = formula.times(found, count), following.per
    if left or (unit is None) != (given is None):
        raise cursor.misread()
    if unit is None or given is None:
        return found
    return _for_given(cursor, found, unit, given)


def _next(left: list[_Rate], of: Span | None) -> _Rate | None:
    """Take out the rate that says how much there is of a unit."""
    for rate in left:
        if rate.of == of or (rate.of and of and rate.of[0] == of[0] == "clock"):
            left.remove(rate)
            return rate
    return None


def _for_given(cursor: Cursor, found: Formula, unit: Span, given: tuple[Formula, Span]) -> Formula:
    """Return a rate for so much of a unit, or for one that has so many of it."""
    count, span = given
    if span != unit and not (span[0] == unit[0] and unit[0] in _CONVERTS):
        raise cursor.misread()
    if span[1] < unit[1] and unit[1] % span[1] == 0:
        found = formula.divided(found, Formula(str(unit[1] // span[1])))
        return found if count.text == "1" else formula.times(found, count)
    times = in_span(count, span, unit)
    return found if times.text == "1" else formula.times(found, times)
