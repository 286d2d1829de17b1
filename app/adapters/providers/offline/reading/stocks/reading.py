"""Reads what a question about stocks says, in whatever order it says it.

Each thing that can be said (a stock, a period, a figure, how to round) has its rule; the rules take
turns until none fits. A thing is said once, and words without a rule are left over, so that the
question fails: their meaning is not known.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from app.adapters.providers.offline.reading.dates.date_terms import DateTerms
from app.adapters.providers.offline.reading.dates.stock_periods import (
    PERIOD_BEGINNINGS,
    Period,
    read_period,
)
from app.adapters.providers.offline.reading.stocks import words as stock_words
from app.adapters.providers.offline.reading.stocks.symbols import (
    SYMBOL_BEGINNINGS,
    read_symbol,
    read_ticker,
)
from app.adapters.providers.offline.reading.stocks.words import Column, Figure
from app.adapters.providers.offline.reading.words.cursor import Cursor
from app.adapters.providers.offline.reading.words.frames import read_closing, read_courtesies
from app.adapters.providers.offline.reading.words.numerals import NUMBER_BEGINNINGS, read_number
from app.adapters.providers.offline.reading.words.rounding import ROUNDING_BEGINNINGS, read_decimals
from app.adapters.providers.offline.reading.words.tokens import Kind

MAX_SYMBOLS = 5
MAX_FIGURES = 3
_ASKING = (
    *("what", "what's", "which", "how", "where", "calculate", "compute", "determine", "find"),
    *("give", "tell", "show", "fetch", "get", "list", "report"),
)
"""Words with which something else begins to be asked for."""
_NUMERIC = frozenset({Kind.NUMBER, Kind.ORDINAL, Kind.DATE})


@dataclass(slots=True)
class Told:
    """What a question says; everything may be missing."""

    symbols: list[str] = field(default_factory=list)
    period: Period | None = None
    figures: list[Figure] = field(default_factory=list)
    column: Column | None = None
    summary: str | None = None
    """``max``, ``min``, ``mean``, ``median`` or ``standard_deviation``."""
    basis: str | None = None
    """``raw`` or ``adjusted``."""
    window: int | None = None
    """Days in a moving average."""
    shares: str | None = None
    """How many shares the price is asked for."""
    worth: bool = False
    listed: bool = False
    """True if the prices themselves are asked for, and no figure or picture of them."""
    decimals: int | None = None
    percent: bool = False
    money: bool = False
    dated: bool = False
    """True if a day is asked for."""
    analysed: bool = False
    compared: bool = False
    picture: bool = False
    kind: str = ""
    drawn: set[str] = field(default_factory=set)
    """What stands in one clause with the picture, and is therefore to be seen in it."""


class StockReader:
    """Reads one question."""

    def __init__(self, dates: DateTerms) -> None:
        self._dates = dates
        self._cursor = dates.cursor
        self._told = Told()
        self._clause: set[str] = set()

    def read(self) -> Told:
        """Read the question to its end."""
        cursor = self._cursor
        if not cursor.mentions(*stock_words.TOPICS):
            raise cursor.misread()
        read_courtesies(cursor)
        while self._read_more(cursor):
            pass
        self._end_clause()
        read_closing(cursor)
        return self._told

    def _read_more(self, cursor: Cursor) -> bool:
        """Follow the first rule that fits, of those that can begin with the next token."""
        here = cursor.here
        numeric = here.kind in _NUMERIC
        for turn in _TURNS:
            begins = here.text in turn.beginnings or (numeric and turn.numeric)
            if begins and cursor.attempt(turn.of(self)):
                return True
        return cursor.attempt(self._read_ticker) is not None

    def _once(self, said: object) -> None:
        if said:
            raise self._cursor.ambiguous("it says something about the stock twice")

    def _read_symbol(self, cursor: Cursor) -> bool:
        return self._add_symbol(read_symbol(cursor))

    def _read_ticker(self, cursor: Cursor) -> bool:
        return self._add_symbol(read_ticker(cursor))

    def _add_symbol(self, symbol: str) -> bool:
        told = self._told
        if symbol in told.symbols:
            return True
        if len(told.symbols) == MAX_SYMBOLS:
            raise self._cursor.ambiguous(f"it names more than {MAX_SYMBOLS} stocks")
        told.symbols.append(symbol)
        return True

    def _read_period(self, cursor: Cursor) -> bool:
        period = read_period(self._dates)
        if self._told.period not in {None, period}:
            raise cursor.ambiguous("it names two periods; ask about one at a time")
        self._told.period = period
        return True

    def _read_shares(self, cursor: Cursor) -> bool:
        """Read ``15 shares of`` or the ``15`` of ``15 IBM shares``."""
        count = read_number(cursor)
        of_stock = cursor.attempt(read_symbol)
        cursor.expect("shares", "share", "stocks")
        cursor.accept("of")
        if not count.text.isdigit():
            raise cursor.misread()
        self._once(self._told.shares)
        self._told.shares = count.text
        return of_stock is None or self._add_symbol(of_stock)

    def _read_window(self, cursor: Cursor) -> bool:
        """Read ``50-day moving average`` or ``moving average over 50 days``."""
        days = None if stock_words.AVERAGES.read(cursor) else self._days(cursor)
        if days is None:
            stock_words.OVER_DAYS.expect(cursor)
            days = self._days(cursor)
        else:
            stock_words.AVERAGES.expect(cursor)
        self._once(self._told.window)
        self._told.window = days
        self._told.figures.append(Figure("moving_average", percent=False))
        self._clause.add("figure")
        return True

    def _days(self, cursor: Cursor) -> int:
        count = read_number(cursor).text
        cursor.accept("-")
        stock_words.TRADING_DAYS.expect(cursor)
        if not count.isdigit():
            raise cursor.misread()
        return int(count)

    def _read_decimals(self, cursor: Cursor) -> bool:
        decimals = read_decimals(cursor)
        self._once(self._told.decimals is not None)
        self._told.decimals = decimals
        return True

    def _read_picture(self, cursor: Cursor) -> bool:
        if stock_words.ANALYSES.read(cursor):
            self._told.analysed = True
            return True
        kind = stock_words.PICTURES.expect(cursor)
        self._once(kind and self._told.kind)
        self._told.kind = self._told.kind or kind
        self._told.picture = True
        self._clause.add("picture")
        return True

    def _read_figure(self, cursor: Cursor) -> bool:
        found = stock_words.FIGURES.expect(cursor)
        if found not in self._told.figures:
            self._told.figures.append(found)
        if len(self._told.figures) > MAX_FIGURES:
            raise cursor.ambiguous(f"it asks for more than {MAX_FIGURES} figures")
        self._clause.add(found.metric)
        return True

    def _read_column(self, cursor: Cursor) -> bool:
        found = stock_words.COLUMNS.expect(cursor)
        self._once(self._told.column)
        self._told.column = found
        self._clause.add("column")
        return True

    def _read_summary(self, cursor: Cursor) -> bool:
        found = stock_words.SUMMARIES.expect(cursor)
        self._once(self._told.summary)
        self._told.summary = found
        self._clause.add("summary")
        return True

    def _read_manner(self, cursor: Cursor) -> bool:
        """Read what a number is to be in, or which day or prices are meant."""
        told = self._told
        if (basis := stock_words.BASES.read(cursor)) is not None:
            self._once(told.basis)
            told.basis = basis
        elif stock_words.PERCENT.read(cursor):
            told.percent = True
        elif stock_words.MONEY.read(cursor):
            told.money = True
        elif stock_words.LOSES.read(cursor) and told.figures:
            told.percent = True
        elif stock_words.WORTH.read(cursor):
            told.worth = True
        elif stock_words.DATED.read(cursor):
            told.dated = True
        elif stock_words.COMPARES.read(cursor):
            told.compared = True
        else:
            raise cursor.misread()
        return True

    def _read_next(self, cursor: Cursor) -> bool:
        """Read what joins; unless a stock follows, another clause begins."""
        stock_words.NEXT.expect(cursor)
        place = cursor.place()
        if cursor.attempt(read_symbol) is None:
            self._end_clause()
        cursor.back(place)
        return True

    def _read_filler(self, cursor: Cursor) -> bool:
        if cursor.at(*_ASKING) and self._clause:
            self._end_clause()
        if cursor.accept("(", ")") or (self._told.compared and cursor.accept("to", "with")):
            return True
        return stock_words.FILLERS.expect(cursor)

    def _end_clause(self) -> None:
        if "picture" in self._clause:
            self._told.drawn |= self._clause
        elif self._clause == {"column"}:
            self._told.listed = True
        self._clause = set()


@dataclass(frozen=True, slots=True)
class _Turn:
    """A rule, and the words and signs with which what it reads can begin."""

    rule: Callable[[StockReader, Cursor], bool]
    beginnings: frozenset[str]
    numeric: bool = False
    """True if it can also begin with a number or a date in digits."""

    def of(self, reader: StockReader) -> Callable[[Cursor], bool]:
        """Return the rule for one reader."""
        return partial(self.rule, reader)


_MANNERS = (
    *(stock_words.BASES, stock_words.PERCENT, stock_words.MONEY, stock_words.LOSES),
    *(stock_words.WORTH, stock_words.DATED, stock_words.COMPARES),
)
_TURNS = (
    _Turn(StockReader._read_shares, NUMBER_BEGINNINGS, numeric=True),
    _Turn(
        StockReader._read_window,
        NUMBER_BEGINNINGS | stock_words.AVERAGES.beginnings,
        numeric=True,
    ),
    _Turn(StockReader._read_decimals, NUMBER_BEGINNINGS | ROUNDING_BEGINNINGS, numeric=True),
    _Turn(
        StockReader._read_picture,
        stock_words.ANALYSES.beginnings | stock_words.PICTURES.beginnings,
    ),
    _Turn(StockReader._read_figure, stock_words.FIGURES.beginnings),
    _Turn(StockReader._read_column, stock_words.COLUMNS.beginnings),
    _Turn(StockReader._read_summary, stock_words.SUMMARIES.beginnings),
    _Turn(StockReader._read_manner, frozenset().union(*(manner.beginnings for manner in _MANNERS))),
    _Turn(StockReader._read_symbol, SYMBOL_BEGINNINGS),
    _Turn(StockReader._read_period, PERIOD_BEGINNINGS, numeric=True),
    _Turn(StockReader._read_next, stock_words.NEXT.beginnings),
    _Turn(StockReader._read_filler, stock_words.FILLERS.beginnings | {"(", ")", "to", "with"}),
)
