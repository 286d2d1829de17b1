"""Questions about stocks: prices, figures worked out from them, and pictures.

What is asked for becomes one to three actions. A question that leaves open which stock, which days
or which number it means is refused with what is missing.
"""

from collections.abc import Mapping

from app.adapters.providers.offline.reading.dates.date_terms import DateTerms
from app.adapters.providers.offline.reading.stocks.arguments import (
    ANALYSIS,
    FETCH,
    PLOTTER,
    StockArguments,
    calculated,
)
from app.adapters.providers.offline.reading.stocks.figures import StockFigures
from app.adapters.providers.offline.reading.stocks.reading import StockReader, Told
from app.adapters.providers.offline.reading.stocks.words import Column, Figure
from app.adapters.providers.offline.reading.words.action import Action, Reading

MAX_ACTIONS = 3
_DRAWABLE = frozenset({"picture", "column", "max_drawdown"})


def read_stock_question(dates: DateTerms) -> Reading:
    """Read ``the closing price of Apple on 2012-09-19``, ``plot AAPL and GOOG in 2010`` …."""
    told = StockReader(dates).read()
    return _StockQuestion(told, StockArguments(dates.cursor, told)).reading()


class _StockQuestion:
    """What a question that was read to its end comes to."""

    def __init__(self, told: Told, arguments: StockArguments) -> None:
        self._told = told
        self._arguments = arguments
        self._figures = StockFigures(arguments)

    def reading(self) -> Reading:
        """Return the actions, and what other tools could add."""
        told = self._told
        if not told.symbols:
            raise self._arguments.unclear("it does not say which stock, such as AAPL or Apple")
        actions = self._analysis() if told.analysed else self._asked()
        if not actions:
            raise self._arguments.cursor.misread()
        if len(actions) > MAX_ACTIONS:
            raise self._arguments.unclear(
                f"it takes more than {MAX_ACTIONS} steps; ask for less at a time"
            )
        flexible = told.period is not None and told.period.named
        return Reading(actions=tuple(actions), besides=self._besides(), flexible=flexible)

    def _asked(self) -> list[Action]:
        told = self._told
        self._check_picture()
        figures = self._figures.wanted()
        actions = self._figures.actions(figures) if figures else self._prices()
        if figures and told.listed and told.column is not None:
            actions = [*self._listed(told.column), *actions]
        if told.picture or (told.compared and not actions):
            actions.append(self._picture())
        return actions

    def _analysis(self) -> list[Action]:
        """``analyse Apple in 2012``: the prices, how they went, and a picture."""
        told = self._told
        if told.column is not None or told.shares is not None:
            raise self._arguments.cursor.misread()
        if len(told.symbols) > 1:
            raise self._arguments.unclear("stocks can be analysed one at a time, or compared")
        figures = self._figures.wanted() or [Figure("total_return", percent=True)]
        actions = self._figures.actions(figures)
        if len(actions) > 1:
            return actions
        return [self._arguments.fetch("close", told.symbols[0]), *actions, self._picture()]

    # What is in a picture, and what is beside it.

    def _check_picture(self) -> None:
        """A picture shows prices and drawdowns; other figures have to be asked for beside it."""
        told = self._told
        if told.picture and not told.drawn <= _DRAWABLE:
            raise self._arguments.unclear("only prices and drawdowns can be drawn")
        if "column" in told.drawn and told.column and told.column.name not in {"close", "price"}:
            raise self._arguments.unclear("of the daily prices only the close is drawn as a line")

    def _picture(self) -> Action:
        told = self._told
        falls = "max_drawdown" in told.drawn
        kind = "drawdown" if falls else told.kind or "line"
        if (falls and told.kind) or (len(told.symbols) > 1 and kind != "line"):
            raise self._arguments.unclear("several stocks can be drawn only as lines")
        about = {**self._arguments.stocks(), **self._arguments.days(), **self._arguments.price()}
        return Action(PLOTTER, {"kind": kind, **about})

    # Prices.

    def _prices(self) -> list[Action]:
        told, column = self._told, self._told.column
        if column is None and (told.worth or told.shares is not None):
            column = Column("close")
        if column is None or "column" in told.drawn:
            return []
        if told.dated or told.percent:
            raise self._arguments.cursor.misread()
        if told.period is None:
            raise self._arguments.unclear("it does not say on which day, such as 2012-09-19")
        if not self._arguments.on_a_day and not column.rows:
            raise self._arguments.unclear(
                "it asks for one price of many days; name the day or the figure"
            )
        found = [
            self._arguments.fetch(self._arguments.field(column), symbol) for symbol in told.symbols
        ]
        return self._holding(found) if told.shares is not None else self._rounded(found)

    def _listed(self, column: Column) -> list[Action]:
        """Return the actions for prices that are asked for beside figures of the same days."""
        if not column.rows:
            raise self._arguments.unclear("it asks for a price and for a figure; ask one at a time")
        field = self._arguments.field(column)
        return [self._arguments.fetch(field, symbol) for symbol in self._told.symbols]

    def _rounded(self, found: list[Action]) -> list[Action]:
        decimals = self._told.decimals
        if decimals is None or not self._arguments.on_a_day:
            return found
        if len(found) > 1:
            raise self._arguments.unclear("rounded prices can be asked of one stock at a time")
        return [*found, *calculated(f"round(${{result.1}}, {decimals})")]

    def _holding(self, found: list[Action]) -> list[Action]:
        """Return what so many shares cost on a day."""
        told = self._told
        volume = told.column is not None and told.column.name == "volume"
        if len(found) != 1 or volume or not self._arguments.on_a_day:
            raise self._arguments.unclear("shares have a price on one day, of one stock")
        worth = f"{told.shares} * ${{result.1}}"
        if told.decimals is not None:
            worth = f"round({worth}, {told.decimals})"
        return [*found, *calculated(worth)]

    def _besides(self) -> Mapping[str, Action]:
        """Return what else can be shown of the same stock on the same days."""
        told = self._told
        if told.period is None or self._arguments.on_a_day:
            return {}
        days = self._arguments.days()
        besides = {PLOTTER: Action(PLOTTER, {"kind": "line", **self._arguments.stocks(), **days})}
        if len(told.symbols) == 1:
            stock = {"symbol": told.symbols[0], **days}
            metric = "max_drawdown" if "max_drawdown" in told.drawn else "total_return"
            besides[FETCH] = Action(FETCH, stock)
            besides[ANALYSIS] = Action(ANALYSIS, {"metric": metric, **stock})
        return besides
