"""Figures of stocks: which are asked for, and how each becomes an answer."""

from typing import Any

from app.adapters.providers.offline.reading.stocks.arguments import (
    ANALYSIS,
    StockArguments,
    calculated,
)
from app.adapters.providers.offline.reading.stocks.words import Asks, Figure
from app.adapters.providers.offline.reading.words.action import Action

_DATED = frozenset({"max", "min", "best_day", "worst_day"})
"""Metrics whose results name a day."""
_ON_CLOSES = frozenset({"close", "price"})


class StockFigures:
    """Settles which figures are wanted, and makes the actions that find them."""

    def __init__(self, arguments: StockArguments) -> None:
        self._arguments = arguments
        self._cursor = arguments.cursor
        self._told = arguments.told

    def wanted(self) -> list[Figure]:
        """Return the figures that are wanted as numbers, not in a picture."""
        told = self._told
        correlated = any(figure.metric == "correlation" for figure in told.figures)
        figures = [
            figure
            for figure in told.figures
            if not (figure.metric == "max_drawdown" and figure.metric in told.drawn)
            and not (figure.metric in {"total_return", "daily"} and correlated)
        ]
        if told.summary is not None:
            figures.append(self._summary(told.summary))
        return [self._settled(figure) for figure in figures]

    def actions(self, figures: list[Figure]) -> list[Action]:
        """Return the actions that find the figures."""
        told = self._told
        if self._arguments.on_a_day and told.summary in {"max", "min"}:
            return [self._extreme_of_a_day(told.summary)]
        actions: list[Action] = []
        for figure in figures:
            if figure.metric == "correlation":
                actions.append(Action(ANALYSIS, self._args(figure) | self._pair()))
            else:
                args = self._args(figure)
                actions += [Action(ANALYSIS, args | {"symbol": name}) for name in told.symbols]
        return actions + self._answering(figures, len(actions))

    def _summary(self, metric: str) -> Figure:
        told = self._told
        if told.column is None or told.figures:
            raise self._cursor.misread()
        if len(told.symbols) > 1:
            raise self._arguments.unclear("it can mean each stock or all of them; ask about one")
        extreme = metric in {"max", "min"}
        if told.column.name == "price" and extreme and not self._arguments.on_a_day:
            raise self._arguments.unclear(
                "prices move within a day; say closing price, daily high or low"
            )
        return Figure(metric, percent=False)

    def _settled(self, figure: Figure) -> Figure:
        """Decide what the question leaves open by what it says of the answer, or refuse."""
        told = self._told
        if figure.metric == "daily":
            raise self._cursor.misread()
        figure = self._in_unit(figure)
        if figure.asks is Asks.DATE and told.percent and not told.dated:
            return Figure(figure.metric, percent=True)
        if told.dated:
            return Figure(figure.metric, Asks.DATE, percent=figure.percent)
        return figure

    def _in_unit(self, figure: Figure) -> Figure:
        told = self._told
        if figure.percent is None and told.percent:
            metric = "total_return" if figure.metric == "change" else figure.metric
            return Figure(metric, figure.asks, percent=True, loss=figure.loss)
        if figure.percent is None and told.money and not figure.loss:
            return Figure("change", percent=False)
        if figure.percent is None:
            raise self._arguments.unclear(
                "a gain or a loss can be in percent or in dollars; say which"
            )
        if told.percent and not figure.percent:
            raise self._arguments.unclear("this figure is not in percent")
        return figure

    def _answering(self, figures: list[Figure], count: int) -> list[Action]:
        """Return the actions that turn what was found into what was asked for."""
        if count != 1:
            if any(figure.loss or figure.asks is not Asks.VALUE for figure in figures):
                raise self._arguments.unclear("this can be asked of one stock at a time")
            return []
        (figure,) = figures
        if figure.asks is Asks.DATE:
            if figure.metric not in _DATED:
                raise self._cursor.misread()
            return [
                Action("calendar", {"operation": "normalise", "date": "${result.1.date}"}),
                Action("respond", {"answer": "${result.2.text}"}),
            ]
        if figure.asks is Asks.DIRECTION:
            return [Action("respond", {"answer": "${result.1.direction}"})]
        return [*calculated("-(${result.1})")] if figure.loss else []

    def _args(self, figure: Figure) -> dict[str, Any]:
        told = self._told
        days = self._arguments.days()
        if figure.metric == "moving_average":
            if told.period is not None and told.period.named and told.period.start is not None:
                raise self._arguments.unclear(
                    "a moving average has one value a day; say on which day"
                )
            days = {"end": days["end"], "window": told.window} if "end" in days else {}
        elif self._arguments.on_a_day:
            raise self._arguments.unclear("one day is not enough for this figure; name a period")
        if told.period is None:
            raise self._arguments.unclear("it does not say over which period, such as 2012")
        decimals = {} if told.decimals is None else {"decimals": told.decimals}
        return {"metric": figure.metric, **days, **self._field(figure), **decimals}

    def _field(self, figure: Figure) -> dict[str, Any]:
        """Return which of the daily numbers a figure is of; levels are as traded unless told."""
        told = self._told
        name = told.column.name if told.column else "close"
        level = told.summary is not None or figure.metric == "change"
        if not level and name not in _ON_CLOSES:
            raise self._cursor.misread()
        if name == "volume":
            if told.basis is not None:
                raise self._arguments.unclear("volumes are not adjusted")
            return {"field": "volume"}
        field = {} if name in _ON_CLOSES else {"field": name}
        return field | (self._arguments.price() or ({"price": "raw"} if level else {}))

    def _pair(self) -> dict[str, Any]:
        if len(self._told.symbols) != 2:
            raise self._arguments.unclear("a correlation is between two stocks")
        return {"symbols": list(self._told.symbols)}

    def _extreme_of_a_day(self, summary: str) -> Action:
        """``the highest price on 2012-09-21`` is the high of that day."""
        told = self._told
        if told.column is None or told.column.name != "price" or told.decimals is not None:
            raise self._arguments.unclear("a single day has one close; ask for its high or low")
        return self._arguments.fetch("high" if summary == "max" else "low", told.symbols[0])
