"""Reads amounts of money with what they are for: ``a $40 shirt``, ``Dinner was $64``."""

from app.adapters.providers.offline.reading.words.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.words.formula import PLAIN, Formula
from app.adapters.providers.offline.reading.words.things import read_amount, read_thing

ARTICLES = ("a", "an", "the", "my", "our", "his", "her", "their", "this", "that")
PEOPLE: Phrases[bool] = Phrases({"(i|we|you|he|she|they|somebody|someone|a customer)": True})
WAS: Phrases[bool] = Phrases(
    {
        "(is|was|are|were|cost|costs|came to|comes to|come to|amounts to|sells for)": True,
        "(is|are) priced at": True,
        "(cost|costs) (me|us)": True,
    }
)
_PAYS: Phrases[bool] = Phrases(
    {"(pay|paid|pays|give|gave|gives|hand over|handed over|spend|spent)": True}
)
_WORTH: Phrases[bool] = Phrases(
    {
        "(worth|costing|for|of|at|priced at)": True,
        "(that|which) (cost|costs|is worth|are worth)": True,
    }
)


def read_money(cursor: Cursor) -> Formula:
    """Read an amount that names its currency; without one, ``3 shirts`` would cost 3."""
    amount = read_amount(cursor)
    if amount.quantity == PLAIN:
        raise cursor.misread()
    return amount


def read_priced(cursor: Cursor) -> Formula:
    """Read ``a $40 shirt``, ``groceries worth 37.85`` or ``a shirt that costs 40``."""
    cursor.accept(*ARTICLES)
    if (amount := cursor.attempt(read_money)) is not None:
        read_thing(cursor)
        return amount
    read_thing(cursor)
    _WORTH.expect(cursor)
    return read_amount(cursor)


def read_told_amount(cursor: Cursor) -> Formula:
    """Read ``Dinner was $64``, ``The bill comes to 80 euros``, ``We spent $64 on dinner``."""
    if PEOPLE.read(cursor):
        _PAYS.expect(cursor)
        amount = read_amount(cursor)
        cursor.expect("for", "on")
        cursor.accept(*ARTICLES)
        read_thing(cursor)
        return amount
    cursor.accept(*ARTICLES)
    if cursor.accept("price", "cost"):
        cursor.expect("of", "for")
        cursor.accept(*ARTICLES)
    read_thing(cursor)
    WAS.expect(cursor)
    return read_amount(cursor)
