"""Reads the price of one stock on one day, as a part of a larger question."""

from app.adapters.providers.offline.reading.dates.date_terms import DateTerms
from app.adapters.providers.offline.reading.dates.stock_periods import read_period
from app.adapters.providers.offline.reading.stocks import words as stock_words
from app.adapters.providers.offline.reading.stocks.symbols import SYMBOL_BEGINNINGS, read_symbol
from app.adapters.providers.offline.reading.words.action import Action
from app.adapters.providers.offline.reading.words.cursor import Cursor

FETCH = "data_fetch_stock"
PRICE_BEGINNINGS = SYMBOL_BEGINNINGS.union(
    {"the"}, stock_words.BASES.beginnings, stock_words.COLUMNS.beginnings
)
"""The words with which a price can begin."""


def read_price(dates: DateTerms) -> Action:
    """Read ``the closing price of IBM on 2011-08-08`` or ``IBM's close on August 8, 2011``."""
    cursor = dates.cursor
    cursor.accept("the")
    symbol = cursor.attempt(read_symbol)
    field = _field(cursor)
    if symbol is None:
        cursor.expect("of", "for")
        symbol = read_symbol(cursor)
        cursor.accept("stock", "shares")
    period = read_period(dates)
    if not period.is_day or period.start is None:
        raise cursor.misread()
    day = period.start.isoformat()
    fields = {} if field == "close" else {"fields": [field]}
    return Action(FETCH, {"symbol": symbol, "start": day, "end": day, **fields})


def _field(cursor: Cursor) -> str:
    basis = stock_words.BASES.read(cursor)
    column = stock_words.COLUMNS.expect(cursor)
    name = "close" if column.name == "price" else column.name
    if column.rows or (basis == "adjusted" and name != "close"):
        raise cursor.misread()
    return "adjusted_close" if basis == "adjusted" else name
