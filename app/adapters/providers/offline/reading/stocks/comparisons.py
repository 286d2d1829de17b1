"""Questions which of several stocks comes first: ``Which did better in 2011, IBM or MSFT?``.

A verdict is one metric and the end of its scale that wins. Words that could mean two metrics, such
as the stock that fell the most, are refused.
"""

from app.adapters.providers.offline.reading.dates.date_terms import DateTerms
from app.adapters.providers.offline.reading.dates.stock_periods import Period, read_period
from app.adapters.providers.offline.reading.stocks import words as stock_words
from app.adapters.providers.offline.reading.stocks.arguments import ANALYSIS, PLOTTER
from app.adapters.providers.offline.reading.stocks.symbols import read_symbol, read_ticker
from app.adapters.providers.offline.reading.words.action import Action, Reading
from app.adapters.providers.offline.reading.words.cursor import Cursor, Phrases
from app.adapters.providers.offline.reading.words.frames import read_closing, read_courtesies
from app.tools.analysis.ranking import HIGHEST, LOWEST, MOST

_Verdict = tuple[str, str]
"""A metric, and which end of it is asked for."""

_WHICH: Phrases[bool] = Phrases(
    {
        "(which|what) (stock|share|company|one|of these|of the two|of them|) (of|among|between|)": (
            True
        ),
        "(which|what) (of|among) the (two|three|four|five|) (stocks|shares|companies|)": True,
        "who": True,
        "between": True,
    }
)
_EITHER: Phrases[bool] = Phrases({"(did|was)": True})
_PERFORMED: Phrases[_Verdict] = Phrases(
    {
        "(did|do|performed|perform|fared|fare|went|was doing) (better|best|the best|the better)": (
            "total_return",
            HIGHEST,
        ),
        "(did|do|performed|perform|fared|fare|went|was doing) (worse|worst|the worst)": (
            "total_return",
            LOWEST,
        ),
        "(was|is|were|) (the|) (more|most) volatile (stock|one|)": ("volatility", HIGHEST),
        "(was|is|were|) (the|) (less|least) volatile (stock|one|)": ("volatility", LOWEST),
        "(fell|lost|dropped|declined) (the|) (more|most) from (a|its|the|) peak": (
            "max_drawdown",
            HIGHEST,
        ),
    }
)
_FELL: Phrases[bool] = Phrases(
    {
        "(fell|fall|lost|lose|dropped|declined|decline|drop) (the|) (more|most|less|least)": True,
    }
)
_ROSE: Phrases[str] = Phrases(
    {
        f"(rose|gained|grew|climbed|increased|rise|gain|grow) (the|) {degree}": end
        for degree, end in (("(more|most)", HIGHEST), ("(less|least)", LOWEST))
    }
)
_HAD: Phrases[bool] = Phrases(
    {
        "(had|has|have|showed|posted|recorded|saw|achieved|earned|made|brought|gave|delivered|"
        "generated|suffered|produced|did have|with) (the|a|an|)": True,
    }
)
_DEGREES: Phrases[str] = Phrases(
    {
        "(higher|highest|larger|largest|greater|greatest|bigger|biggest)": HIGHEST,
        "(lower|lowest|smaller|smallest)": LOWEST,
        "(better|best)": "best",
        "(worse|worst)": "worst",
        "(deeper|deepest)": "deepest",
    }
)
_METRICS: Phrases[str] = Phrases(
    {
        "(total|overall|) (return|returns|performance)": "total_return",
        "(percent|percentage|%) (gain|change|increase|growth|return)": "total_return",
        "(annualised|annualized|compound annual) (return|growth|growth rate)": "annualized_return",
        "(annualised|annualized|) volatility": "volatility",
        "(maximum|max|) (drawdown|draw down|draw - down)": "max_drawdown",
    }
)
VERDICT_WORDS = _DEGREES.beginnings | {"more", "most", "less", "least"}
"""One of these is in every such question."""
_ENDS = {HIGHEST: HIGHEST, LOWEST: LOWEST}
_RETURN_ENDS = _ENDS | {"best": HIGHEST, "worst": LOWEST}
_DRAWDOWN_ENDS = _ENDS | {"worst": HIGHEST, "deepest": HIGHEST}
_ENDS_OF = {
    "total_return": _RETURN_ENDS,
    "annualized_return": _RETURN_ENDS,
    "volatility": _ENDS,
    "max_drawdown": _DRAWDOWN_ENDS,
}
"""The end of its scale that an adjective means; a better drawdown could be either."""


class _Comparison:
    """What a question says, in whatever order."""

    def __init__(self, dates: DateTerms) -> None:
        self._dates = dates
        self._cursor = dates.cursor
        self.symbols: list[str] = []
        self.period: Period | None = None
        self.verdict: _Verdict | None = None
        self._joins: set[str | None] = set()

    def read(self) -> None:
        """Read ``which of AAPL and IBM did better in 2011`` or ``did IBM or MSFT do better …``."""
        cursor = self._cursor
        self._read_period()
        cursor.accept(",")
        if not _WHICH.read(cursor):
            _EITHER.expect(cursor)
        self._read_symbols()
        if self.symbols and cursor.accept(","):
            _WHICH.read(cursor)
        self._read_period()
        self.verdict = _read_verdict(cursor)
        stock_words.PERCENT.read(cursor)
        self._read_period()
        stock_words.PERCENT.read(cursor)
        if not self.symbols:
            cursor.accept(",", ":", "-")
            self._read_symbols()
            self._read_period()
        if {"and", "or"} <= self._joins:
            raise cursor.ambiguous("some of the stocks may be meant together; ask about one each")

    def _read_period(self) -> None:
        cursor = self._cursor
        place = cursor.place()
        cursor.accept(",")
        period = cursor.attempt(lambda _: read_period(self._dates))
        if period is None:
            cursor.back(place)
        elif self.period is not None:
            raise cursor.ambiguous("it names two periods; ask about one at a time")
        else:
            self.period = period

    def _read_symbols(self) -> None:
        cursor = self._cursor
        while (symbol := cursor.attempt(_read_stock)) is not None:
            if symbol not in self.symbols:
                self.symbols.append(symbol)
            place = cursor.place()
            cursor.accept(",")
            self._joins.add(cursor.accept("or", "and", "vs", "versus"))
            if cursor.attempt(_ahead_a_stock) is None:
                cursor.back(place)
                return


def _read_stock(cursor: Cursor) -> str:
    cursor.accept("the")
    symbol = cursor.first_of(read_symbol, read_ticker)
    cursor.accept("stock", "shares", "share")
    return symbol


def _ahead_a_stock(cursor: Cursor) -> str:
    """Tell whether another stock follows, and stay before it."""
    place = cursor.place()
    symbol = _read_stock(cursor)
    cursor.back(place)
    return symbol


def _read_verdict(cursor: Cursor) -> _Verdict:
    found = _PERFORMED.read(cursor)
    if found is not None:
        return found
    if _FELL.read(cursor):
        raise cursor.ambiguous(
            "a fall can be from the first day to the last or from a peak; ask for the lowest return"
            " or the largest drawdown"
        )
    if (end := _ROSE.read(cursor)) is not None:
        return "total_return", _in_percent(cursor, end)
    _HAD.expect(cursor)
    degree = _DEGREES.expect(cursor)
    metric = _METRICS.expect(cursor)
    meant = _ENDS_OF[metric].get(degree)
    if meant is None:
        raise cursor.ambiguous("it can mean the highest or the lowest; say which")
    return metric, meant


def _in_percent(cursor: Cursor, end: str) -> str:
    """Return the end, if the question says somewhere that a gain is meant in percent."""
    if not cursor.mentions("percent", "percentage", "%"):
        raise cursor.ambiguous("a gain or a loss can be in percent or in dollars; say which")
    return end


def read_stock_comparison(dates: DateTerms) -> Reading:
    """Read ``which did better in 2011, IBM or MSFT``, ``which of A, B and C was the most …``."""
    cursor = dates.cursor
    read_courtesies(cursor)
    told = _Comparison(dates)
    told.read()
    stock_words.PERCENT.read(cursor)
    read_closing(cursor)
    if told.verdict is None or not 2 <= len(told.symbols) <= MOST:
        raise cursor.ambiguous(f"from 2 to {MOST} stocks can be compared; name them")
    if told.period is None:
        raise cursor.ambiguous("it does not say over which period, such as 2012")
    if told.period.is_day:
        raise cursor.ambiguous("one day is not enough for this figure; name a period")
    metric, end = told.verdict
    ends = {"start": told.period.start, "end": told.period.end}
    days = {name: day.isoformat() for name, day in ends.items() if day is not None}
    args = {"metric": metric, "symbols": told.symbols, **days}
    if end != HIGHEST:
        args |= {"which": end}
    picture = Action(PLOTTER, {"kind": "line", "symbols": told.symbols, **days})
    return Reading(
        actions=(Action(ANALYSIS, args),),
        besides={PLOTTER: picture},
        flexible=told.period.named,
    )
