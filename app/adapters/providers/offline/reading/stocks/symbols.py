"""Reads the stocks that a question names, by symbol or by company."""

from collections.abc import Mapping

from app.adapters.providers.offline.reading.words.cursor import Cursor
from app.adapters.providers.offline.reading.words.tokens import Kind
from app.tools.stocks.companies import SYMBOLS

_NAMES: Mapping[tuple[str, ...], str] = {
    tuple(name.split()): symbol for name, symbol in SYMBOLS.items()
} | {(symbol.lower(),): symbol for symbol in SYMBOLS.values()}
SYMBOL_BEGINNINGS = frozenset(
    {"$", *(words[0] for words in _NAMES), *(f"{words[0]}'s" for words in _NAMES)}
)
"""The words with which the name of a stock can begin."""
_LONGEST = max(map(len, _NAMES))
_LEGAL_FORMS = ("inc", "incorporated", "corp", "corporation", "co", "company", "ltd", "plc")
_MAX_TICKER_CHARS = 5


def read_symbol(cursor: Cursor) -> str:
    """Read ``AAPL``, ``$AAPL``, ``Apple``, ``Apple Inc.``, ``Apple's`` or ``Apple (AAPL)``."""
    if not cursor.at(*SYMBOL_BEGINNINGS):
        raise cursor.misread()
    cursor.accept("$")
    for length in range(_LONGEST, 0, -1):
        words = [cursor.ahead(distance).text for distance in range(length)]
        words[-1] = words[-1].removesuffix("'s")
        symbol = _NAMES.get(tuple(words))
        if symbol is not None:
            for _ in range(length):
                cursor.take()
            _read_rest(cursor, symbol)
            return symbol
    raise cursor.misread()


def read_ticker(cursor: Cursor) -> str:
    """Read a symbol in capitals that is not known here; whether it exists is the tool's to say."""
    token = cursor.here
    written = cursor.source[token.start : token.end].removesuffix("'s")
    fits = written.isalpha() and written.isupper() and 1 < len(written) <= _MAX_TICKER_CHARS
    if token.kind is not Kind.WORD or not fits:
        raise cursor.misread()
    cursor.take()
    return written


def _read_rest(cursor: Cursor, symbol: str) -> None:
    _read_legal_form(cursor)
    cursor.attempt(lambda at: _read_again(at, symbol))


def _read_legal_form(cursor: Cursor) -> None:
    place = cursor.place()
    cursor.accept(",")
    if cursor.here.text.removesuffix("'s") not in _LEGAL_FORMS:
        cursor.back(place)
        return
    cursor.take()
    if cursor.at(".") and cursor.here.glued and cursor.ahead().kind is not Kind.END:
        cursor.take()


def _read_again(cursor: Cursor, symbol: str) -> bool:
    """Read the ``(AAPL)`` of ``Apple (AAPL)``."""
    cursor.expect("(")
    if read_symbol(cursor) != symbol:
        raise cursor.misread()
    cursor.expect(")")
    return True
