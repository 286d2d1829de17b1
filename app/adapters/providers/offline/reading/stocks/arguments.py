"""What the tools for stocks are told, from what a question says."""

from typing import Any

from app.adapters.providers.offline.reading.stocks.reading import Told
from app.adapters.providers.offline.reading.stocks.words import Column
from app.adapters.providers.offline.reading.words.action import Action
from app.adapters.providers.offline.reading.words.cursor import AmbiguousError, Cursor

FETCH, ANALYSIS, PLOTTER = "data_fetch_stock", "numeric_analysis", "plotter"
_CALCULATOR, _RESPOND = "calculator", "respond"


class StockArguments:
    """Makes actions for the stocks and the days that a question names."""

    def __init__(self, cursor: Cursor, told: Told) -> None:
        self.cursor = cursor
        self.told = told

    def unclear(self, reason: str) -> AmbiguousError:
        """Return the error of a question that leaves something open."""
        return self.cursor.ambiguous(reason)

    @property
    def on_a_day(self) -> bool:
        """True if the question is about one day."""
        return self.told.period is not None and self.told.period.is_day

    def days(self) -> dict[str, Any]:
        """Return the first and the last day, as far as they are given."""
        period = self.told.period
        ends = {} if period is None else {"start": period.start, "end": period.end}
        return {name: day.isoformat() for name, day in ends.items() if day is not None}

    def stocks(self) -> dict[str, Any]:
        """Return the stocks as the plotter takes them."""
        symbols = self.told.symbols
        return {"symbols": list(symbols)} if len(symbols) > 1 else {"symbol": symbols[0]}

    def price(self) -> dict[str, Any]:
        """Return whether prices are adjusted, if the question says so."""
        return {} if self.told.basis is None else {"price": self.told.basis}

    def field(self, column: Column) -> str:
        """Return the name of a daily number for the tool that fetches."""
        name = "close" if column.name == "price" else column.name
        if self.told.basis != "adjusted":
            return name
        if name != "close":
            raise self.unclear("only closing prices are known adjusted")
        return "adjusted_close"

    def fetch(self, field: str, symbol: str) -> Action:
        """Return the action that fetches a field on the days."""
        fields = {} if field == "close" else {"fields": [field]}
        return Action(FETCH, {"symbol": symbol, **self.days(), **fields})


def calculated(expression: str) -> tuple[Action, Action]:
    """Return the actions that work something out from the first result, and answer with it."""
    return (
        Action(_CALCULATOR, {"expression": expression}),
        Action(_RESPOND, {"answer": "${result.2}"}),
    )
