"""Word problems about buying several things: ``3 coffees at $4.25 each and a muffin for $3``.

Each item is a number of things and the price of one of them, or one thing and its price; a fee may
come on top. The question asks for the total, for the change from a note, or for each one's part.
"""

from app.adapters.providers.offline.reading.dates.date_terms import DateTerms
from app.adapters.providers.offline.reading.stories.bills import read_with_share
from app.adapters.providers.offline.reading.sums.expressions import Expressions
from app.adapters.providers.offline.reading.sums.problems import read_end, solved
from app.adapters.providers.offline.reading.words import formula
from app.adapters.providers.offline.reading.words.action import Reading
from app.adapters.providers.offline.reading.words.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.words.formula import PLAIN, Formula
from app.adapters.providers.offline.reading.words.frames import read_courtesies
from app.adapters.providers.offline.reading.words.holders import OWNERS, pass_place, read_holder
from app.adapters.providers.offline.reading.words.numerals import read_number
from app.adapters.providers.offline.reading.words.things import (
    is_same,
    read_amount,
    read_thing,
    same_money,
    words,
)

_BUY = words(
    "buy buys bought order orders ordered get gets got purchase purchases purchased rent rents "
    "rented hire hires hired sell sells sold need needs needed book books booked pick picked"
)
_AT: Phrases[bool] = Phrases(
    {"(at|costing|priced at|for|that cost|which cost|that costs|which costs|worth)": True}
)
_EACH: Phrases[bool] = Phrases(
    {
        "(each|apiece|a piece|per piece|per item|a pop|a unit|per unit)": True,
        "(a|per|each|every|an|for each) (one)": True,
    }
)
_PER: Phrases[bool] = Phrases({"(a|an|per|each|every|for each|for every)": True})
_FEE: Phrases[bool] = Phrases(
    {
        "(plus|and|with|,) (a|an|the|) (flat|fixed|one - time|one - off|single|delivery|shipping|"
        "booking|service|handling|cleaning|base|) (fee|charge|cost|rate) (of|is)": True,
        "(plus|and|with|,) (delivery|shipping|postage) (of|for|is|costs)": True,
    }
)
_TOTAL: Phrases[bool] = Phrases(
    {
        "(what is|what's|how much is|what was|what will be|what would be|what are) (the|my|our|his|"
        "her|their|) (total|overall|whole|entire|full|) (cost|price|bill|amount|sum|total|costs)": (
            True
        ),
        "(how much|what) (do|did|does|will|would|must|should) (i|we|you|he|she|they) (have to|) "
        "(pay|spend|owe)": True,
        "(how much|what) (do|did|does|will|would|is|are) (it|they|this|that|these|everything) "
        "(all|) (cost|costs|come to|be|)": True,
        "how much money (do|did|does|will|would) (i|we|you|he|she|they) (have to|) "
        "(pay|spend|owe|need)": True,
        "how much is (it|that|this|everything)": True,
        "what is the total": True,
    }
)
_IN_ALL: Phrases[bool] = Phrases(
    {"(in total|altogether|in all|all together|for everything|for all|together|overall)": True}
)
_CHANGE: Phrases[bool] = Phrases(
    {
        "(how much|what) change (do|will|should|would|did|does) (i|we|you|he|she|they) "
        "(get|receive|get back|have) (from|for|out of)": True,
        "(how much|what) (is|will be) (the|my|) change from": True,
        "(i|we|you|he|she|they) (pay|pays|paid) with": False,
    }
)
_BACK: Phrases[bool] = Phrases(
    {
        "(how much|what) change (do|will|should|would|did|does) (i|we|you|he|she|they) "
        "(get|receive) (back|)": True,
        "how much (do|will|should|would|did|does) (i|we|you|he|she|they) get back": True,
    }
)
_INSIDE: Phrases[bool] = Phrases(
    {
        "(what|how much) (do|does|would|will|did)": True,
        "(what is|what's|how much is|how much are|what are) (the total cost of|the cost of|the "
        "total price of|the price of|the total for|)": True,
        "(what|how much) (do|does|would|will|did) (i|we|you) (pay|spend) (for|on)": True,
    }
)


def read_basket(dates: DateTerms) -> Reading:
    """Read ``I buy 3 coffees at $4.25 each and 2 muffins at $3.10 each. What is the total``."""
    cursor, expressions = dates.cursor, Expressions(dates)
    read_courtesies(cursor)
    cursor.accept("if")
    basket = _Basket(expressions)
    found = cursor.first_of(lambda _: basket.told_first(), lambda _: basket.told_inside())
    return solved(expressions, found)


class _Basket:
    def __init__(self, expressions: Expressions) -> None:
        self._expressions = expressions
        self._cursor = expressions.cursor

    def told_first(self) -> Formula:
        """``I buy …. What is the total`` or ``How much change do I get from $50``."""
        cursor = self._cursor
        cursor.attempt(_buyer)
        total = self._items()
        read_end(cursor)
        if (paid := cursor.attempt(_paid)) is not None:
            return self._checked_change(paid, total)
        _TOTAL.expect(cursor)
        _IN_ALL.read(cursor)
        share = cursor.attempt(read_with_share)
        if share is not None:
            return self._expressions.checked(lambda: formula.scaled(total, *share))
        return total

    def told_inside(self) -> Formula:
        """``What do 3 coffees at $4.25 each and 2 muffins at $3.10 each cost``."""
        cursor = self._cursor
        _INSIDE.expect(cursor)
        total = self._items()
        cursor.accept("cost", "costs")
        _IN_ALL.read(cursor)
        return total

    def _items(self) -> Formula:
        """Read two items or more, or one with a fee."""
        cursor = self._cursor
        items = [_item(cursor)]
        while True:
            if cursor.attempt(_fee_opens):
                items.append(read_amount(cursor))
            elif (more := cursor.attempt(_further)) is not None:
                items.append(more)
            else:
                break
        if len(items) < 2:
            raise cursor.misread()
        pass_place(cursor, "at", "from", "in")
        return self._expressions.checked(lambda: _sum(items))

    def _checked_change(self, paid: Formula, total: Formula) -> Formula:
        return self._expressions.checked(lambda: formula.minus(*same_money(paid, total)))


def _sum(items: list[Formula]) -> Formula:
    total = items[0]
    for item in items[1:]:
        total = formula.plus(*same_money(total, item))
    return total


def _buyer(cursor: Cursor) -> bool:
    """Read ``I buy`` or ``My mother rents a car for``."""
    read_holder(cursor, _BUY)
    cursor.expect(*_BUY)
    cursor.attempt(_what_for)
    return True


def _what_for(cursor: Cursor) -> bool:
    """Read ``a car for`` before ``5 days at 42 a day``."""
    cursor.expect("a", "an", "the")
    read_thing(cursor)
    cursor.expect("for")
    place = cursor.place()
    _number(cursor)
    cursor.back(place)
    return True


def _fee_opens(cursor: Cursor) -> bool:
    return _FEE.expect(cursor)


def _further(cursor: Cursor) -> Formula:
    joined = cursor.accept(",") is not None
    joined |= cursor.accept("and", "plus") is not None
    if not joined:
        raise cursor.misread()
    return _item(cursor)


def _item(cursor: Cursor) -> Formula:
    """Read ``3 coffees at $4.25 each``, ``a hat for $12``, ``5 days at 42 a day``."""
    count = cursor.attempt(_number)
    if count is None:
        cursor.accept(*OWNERS)
        cursor.accept("one", "single")
    thing = read_thing(cursor)
    total = cursor.here.text == "for"
    _AT.expect(cursor)
    price = read_amount(cursor)
    each = _EACH.read(cursor) is not None or cursor.attempt(lambda at: _per(at, thing)) is not None
    if count is None:
        return price
    if total and not each:
        raise cursor.ambiguous("a price for several things can be that of each or of all; say each")
    return formula.times(count, price)


def _number(cursor: Cursor) -> Formula:
    count = read_number(cursor)
    if count.quantity != PLAIN or count.fraction:
        raise cursor.misread()
    return count


def _per(cursor: Cursor, thing: str) -> bool:
    _PER.expect(cursor)
    if not is_same(thing, read_thing(cursor)):
        raise cursor.misread()
    return True


def _paid(cursor: Cursor) -> Formula:
    """Read ``how much change do I get from $50`` or ``I pay with $50. How much change …``."""
    asked = _CHANGE.expect(cursor)
    cursor.accept("a", "an")
    amount = read_amount(cursor)
    cursor.accept("note", "bill")
    if not asked:
        read_end(cursor)
        _BACK.expect(cursor)
    return amount
