"""Questions about the distance between two prices of one day.

``What was the difference between the high and the low of IBM on 2010-05-06?``
"""

from app.adapters.providers.offline.reading.dates.date_terms import DateTerms
from app.adapters.providers.offline.reading.dates.stock_periods import read_period
from app.adapters.providers.offline.reading.stocks import words as stock_words
from app.adapters.providers.offline.reading.stocks.arguments import FETCH, calculated
from app.adapters.providers.offline.reading.stocks.symbols import read_symbol
from app.adapters.providers.offline.reading.words.action import Action, Reading
from app.adapters.providers.offline.reading.words.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.words.frames import read_asking, read_closing

_GAP: Phrases[bool] = Phrases(
    {"(the|) (price|) (difference|gap|spread|distance) (between|of|from)": True}
)


def read_price_gap(dates: DateTerms) -> Reading:
    """Read ``the difference between IBM's opening and closing price on 2010-05-06``."""
    cursor = dates.cursor
    read_asking(cursor)
    _GAP.expect(cursor)
    cursor.accept("the")
    symbol = cursor.attempt(read_symbol)
    one = _column(cursor)
    cursor.expect("and", "to")
    cursor.accept("the")
    other = _column(cursor)
    if symbol is None:
        cursor.expect("of", "for")
        symbol = read_symbol(cursor)
        cursor.accept("stock", "shares", "share")
    period = read_period(dates)
    read_closing(cursor)
    if one == other or not period.is_day or period.start is None:
        raise cursor.misread()
    day = period.start.isoformat()
    fetch = Action(FETCH, {"symbol": symbol, "start": day, "end": day, "fields": [one, other]})
    gap = calculated("abs(${result.1.rows.0.1} - ${result.1.rows.0.2})")
    return Reading(actions=(fetch, *gap))


def _column(cursor: Cursor) -> str:
    column = stock_words.COLUMNS.expect(cursor)
    if column.rows or column.name in {"price", "volume"}:
        raise cursor.misread()
    return column.name
