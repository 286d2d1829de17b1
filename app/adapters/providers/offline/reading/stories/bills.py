"""Word problems about a share of an amount: a tip on it, a discount off it."""

from collections.abc import Callable

from app.adapters.providers.offline.reading.dates.date_terms import DateTerms
from app.adapters.providers.offline.reading.sums.expressions import Expressions
from app.adapters.providers.offline.reading.sums.problems import read_end, solved
from app.adapters.providers.offline.reading.words import formula
from app.adapters.providers.offline.reading.words.action import Reading
from app.adapters.providers.offline.reading.words.amounts import (
    ARTICLES,
    WAS,
    read_money,
    read_priced,
    read_told_amount,
)
from app.adapters.providers.offline.reading.words.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.words.formula import PERCENT, Formula
from app.adapters.providers.offline.reading.words.frames import read_courtesies
from app.adapters.providers.offline.reading.words.numerals import read_number
from app.adapters.providers.offline.reading.words.operators import DISCOUNT, SURCHARGE
from app.adapters.providers.offline.reading.words.things import read_amount, read_thing

_WHAT: Phrases[bool] = Phrases(
    {
        "(what is|what's|how much is|what would be|how much would be|calculate|find)": True,
        "(how much|what) (do|would|will|should|must) (i|we|you) (pay|leave|give) (for|as|)": True,
    }
)
_TOTAL: Phrases[bool] = Phrases(
    {
        "(what is|what's|how much is|what would be|what will be) (the|my|our|its) (total|full|) "
        "(price|bill|cost|amount|total|sum)": True,
        "(what is|what's|how much is|what would be|what will be) (the|my|our|its) (final|new|sale|"
        "reduced|discounted) (price|bill|cost|amount|total)": True,
        "(how much|what) (do|would|will|should|must) (i|we|you) (have to|) pay "
        "(in total|altogether|in all|now|)": True,
        "(how much|what) (does|do|would|will) (it|they|this|that) cost (in total|now|)": True,
        "how much is it (in total|altogether|now|)": True,
    }
)
_NEW: Phrases[bool] = Phrases(
    {"(what is|what's|how much is|what will be) (the|my|our|its) (new|increased|reduced)": True}
)
_SAVES: Phrases[bool] = Phrases(
    {
        "(how much|what) (money|) (do|would|will|can) (i|we|you) save": True,
        "how much is (saved|the discount|taken off)": True,
        "what is the (discount|saving)": True,
    }
)
_WITH: Phrases[bool] = Phrases(
    {"(with|including|after|plus|at|incl|and) (a|an|the|)": True, "(once|when) (a|an|the|)": True}
)
_REDUCED: Phrases[str] = Phrases(
    {
        "(is|are|was|were) (reduced|discounted|marked down|lowered|cut) by": "-",
        "(is|are|was|were) (increased|raised|marked up) by": "+",
        "(falls|fall|drops|drop|fell|dropped) by": "-",
        "(rises|rise|rose|goes up|went up) by": "+",
    }
)
_ON_SALE: Phrases[bool] = Phrases(
    {
        "(is|are|was|were|comes|come) (on sale|) (for|at|with|) (a|)": True,
        "(has|have|with|gets) (a|)": True,
    }
)


def read_share_of_bill(dates: DateTerms) -> Reading:
    """Read ``Dinner was $64.00. What is a 15% tip`` and ``what do I pay for … with 20% off``."""
    cursor, expressions = dates.cursor, Expressions(dates)
    read_courtesies(cursor)
    cursor.accept("if")
    build = cursor.first_of(_bill_first, _sale_first, _all_inside)
    return solved(expressions, expressions.checked(build))


_Build = Callable[[], Formula]


def _bill_first(cursor: Cursor) -> _Build:
    amount = read_told_amount(cursor)
    if not cursor.accept("and"):
        read_end(cursor)
    if cursor.attempt(_total) is not None:
        sign, share = read_with_share(cursor)
        return lambda: formula.scaled(amount, sign, share)
    if (moved := cursor.attempt(_price_moves)) is not None:
        sign, share = moved
        read_end(cursor)
        _total(cursor)
        return lambda: formula.scaled(amount, sign, share)
    _WHAT.expect(cursor)
    cursor.accept("a", "an", "the")
    share = _share_itself(cursor)
    return lambda: formula.times(amount, share)


def _total(cursor: Cursor) -> bool:
    """Read ``what is the total``, ``what do I pay now``, ``what is the new rent``."""
    if _TOTAL.read(cursor):
        return True
    _NEW.expect(cursor)
    read_thing(cursor)
    return True


def read_with_share(cursor: Cursor) -> tuple[str, Formula]:
    """Read ``with a 10% discount`` or ``after 20% off``, with the sign of the share."""
    _WITH.expect(cursor)
    return read_named_share(cursor)


def _price_moves(cursor: Cursor) -> tuple[str, Formula]:
    """``It is reduced by 25%``, ``the price rises by 10%``."""
    cursor.accept("it", "they", "this", "the", "its")
    cursor.accept("price")
    sign = _REDUCED.expect(cursor)
    return sign, read_percent(cursor)


def _sale_first(cursor: Cursor) -> _Build:
    """``A $80 jacket is 25% off. What is the sale price`` or ``how much do I save``."""
    cursor.accept(*ARTICLES)
    amount = cursor.attempt(read_money)
    read_thing(cursor)
    if amount is None:
        WAS.expect(cursor)
        amount = read_amount(cursor)
        cursor.expect("and", ",", "but")
    before = amount
    if (moved := cursor.attempt(_price_moves)) is None:
        _ON_SALE.expect(cursor)
        moved = read_named_share(cursor)
    sign, share = moved
    read_end(cursor)
    if _SAVES.read(cursor):
        if sign != "-":
            raise cursor.misread()
        return lambda: formula.times(before, share)
    _total(cursor)
    return lambda: formula.scaled(before, sign, share)


_INSIDE: Phrases[bool] = Phrases(
    {
        "(what|how much) (do|would|will|should|must) (i|we|you) pay for": True,
        "(what is|what's|how much is|how much are|what are) (the total price of|the total cost of|"
        "the price of|the cost of|)": True,
        "(how much|what) (does|do|would|will)": True,
    }
)


def _all_inside(cursor: Cursor) -> _Build:
    """``What do I pay for a 79.90 euro coat with 20% off``, ``an 18% tip on a bill of $50``."""
    _INSIDE.read(cursor)
    share = cursor.attempt(_share_on)
    if share is not None:
        of = read_priced(cursor)
        return lambda: formula.times(of, share)
    if (named := cursor.attempt(_share_named_first)) is not None:
        of = cursor.attempt(read_priced) or read_amount(cursor)
        return lambda: formula.times(of, named)
    amount = cursor.attempt(read_priced) or read_amount(cursor)
    cursor.accept("cost", "be")
    sign, percent = read_with_share(cursor)
    return lambda: formula.scaled(amount, sign, percent)


def _share_on(cursor: Cursor) -> Formula:
    cursor.accept("a", "an", "the")
    share = _share_itself(cursor)
    cursor.expect("on", "of", "for")
    return share


def _share_named_first(cursor: Cursor) -> Formula:
    """Read ``sales tax of 8.25% on``."""
    cursor.accept("a", "an", "the")
    if not SURCHARGE.read(cursor):
        DISCOUNT.expect(cursor)
    cursor.expect("of", "at")
    share = read_percent(cursor)
    cursor.expect("on", "for")
    return share


def _share_itself(cursor: Cursor) -> Formula:
    """Read ``15% tip`` as so much money; ``20% off`` would be what is left."""
    _, share = read_named_share(cursor)
    last = cursor.before()
    if last is not None and last.text == "off":
        raise cursor.misread()
    return share


def read_named_share(cursor: Cursor) -> tuple[str, Formula]:
    """Read ``15% tip`` or ``20% off``, with the sign that it has."""
    share = read_percent(cursor)
    if SURCHARGE.read(cursor) or cursor.accept("increase", "raise", "markup", "surcharge", "rise"):
        cursor.accept("added", "included")
        return "+", share
    if DISCOUNT.read(cursor) or cursor.accept("off", "decrease", "cut"):
        return "-", share
    raise cursor.misread()


def read_percent(cursor: Cursor) -> Formula:
    """Read ``15%``, ``15 percent`` or ``fifteen per cent``."""
    number = read_number(cursor)
    if not cursor.accept("%", "percent", "pct"):
        cursor.expect("per")
        cursor.expect("cent")
    found = formula.percentage(number) if not number.quantity else number
    if found.quantity != PERCENT:
        raise cursor.misread()
    return found
