"""Word problems about change: ``I pay 50 for groceries worth 37.85. How much change do I get``."""

from app.adapters.providers.offline.reading.dates.date_terms import DateTerms
from app.adapters.providers.offline.reading.sums.expressions import Expressions
from app.adapters.providers.offline.reading.sums.problems import read_end, solved
from app.adapters.providers.offline.reading.words import formula
from app.adapters.providers.offline.reading.words.action import Reading
from app.adapters.providers.offline.reading.words.amounts import (
    PEOPLE,
    read_priced,
    read_told_amount,
)
from app.adapters.providers.offline.reading.words.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.words.formula import Formula
from app.adapters.providers.offline.reading.words.frames import read_courtesies
from app.adapters.providers.offline.reading.words.things import read_amount, same_money

_PAYS_WITH: Phrases[bool] = Phrases(
    {
        "(pay|paid|pays) (with|)": True,
        "(give|gave|gives|hand over|handed over) (the cashier|the seller|)": True,
    }
)
_BUYS: Phrases[bool] = Phrases({"(buy|bought|buys|get|got)": True})
_CHANGE: Phrases[bool] = Phrases(
    {
        "(how much|what) (change|money|) (do|will|should|would|did|does|must) (i|we|you|he|she|"
        "they) (get|receive|be given|have|expect) (back|left|in change|as change|in return|)": True,
        "(what is|what's|how much is) (my|the|his|her|our) change": True,
        "how much (change|money|) is (left|returned|given back)": True,
    }
)


def read_change(dates: DateTerms) -> Reading:
    """Read ``I pay 50 for groceries worth 37.85. How much change do I get``."""
    cursor, expressions = dates.cursor, Expressions(dates)
    read_courtesies(cursor)
    cursor.accept("if")
    paid, price = cursor.first_of(_paid_for, _bought_for, _cost_and_paid)
    read_end(cursor)
    _CHANGE.expect(cursor)
    paid, price = same_money(paid, price)
    return solved(expressions, expressions.checked(lambda: formula.minus(paid, price)))


def _paid_for(cursor: Cursor) -> tuple[Formula, Formula]:
    PEOPLE.expect(cursor)
    _PAYS_WITH.expect(cursor)
    paid = _note(cursor)
    cursor.expect("for")
    return paid, read_priced(cursor)


def _bought_for(cursor: Cursor) -> tuple[Formula, Formula]:
    PEOPLE.expect(cursor)
    _BUYS.expect(cursor)
    price = read_priced(cursor)
    cursor.accept(",", ".")
    cursor.accept("and")
    PEOPLE.read(cursor)
    _PAYS_WITH.expect(cursor)
    return _note(cursor), price


def _cost_and_paid(cursor: Cursor) -> tuple[Formula, Formula]:
    price = read_told_amount(cursor)
    cursor.expect(",", ".", "and")
    cursor.accept("and")
    PEOPLE.expect(cursor)
    _PAYS_WITH.expect(cursor)
    return _note(cursor), price


def _note(cursor: Cursor) -> Formula:
    cursor.accept("a", "an")
    amount = read_amount(cursor)
    cursor.accept("note", "bill")
    return amount
