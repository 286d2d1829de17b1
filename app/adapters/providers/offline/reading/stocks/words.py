"""The vocabulary of questions about stocks."""

from dataclasses import dataclass
from enum import Enum, auto

from app.adapters.providers.offline.reading.words.cursor import Phrases


class Asks(Enum):
    """What of a finding is the answer."""

    VALUE = auto()
    DATE = auto()
    DIRECTION = auto()
    """Rising or falling."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A metric of numeric_analysis, and what of it is asked for."""

    metric: str
    asks: Asks = Asks.VALUE
    percent: bool | None = None
    """True if it is in percent, None if the question has to say so."""
    loss: bool = False
    """True if a fall is asked for as a positive number."""


@dataclass(frozen=True, slots=True)
class Column:
    """One of the daily numbers, such as the closing price."""

    name: str
    """A field of the tools, or ``price``: the close, or the highest and lowest of a day."""
    rows: bool = False
    """True if it is asked for day by day."""


_DAILY = "(daily|one day|single day|one - day|single - day|day's)"
COLUMNS: Phrases[Column] = Phrases(
    {
        "(daily|) (closing|close) (price|value|quote|)": Column("close"),
        "(price|value|) at (the|) close (of trading|of the day|)": Column("close"),
        "(closed|close at|closed at)": Column("close"),
        "(daily|) (closing prices|closes|close prices|closing values)": Column("close", rows=True),
        "(daily|) (opening|open) (price|value|quote|)": Column("open"),
        "(price|value) at (the|) (open|opening)": Column("open"),
        "at (the|) open (of trading|)": Column("open"),
        "(opened|open at|opened at)": Column("open"),
        "(daily|) (opening prices|opens|open prices)": Column("open", rows=True),
        "(daily|intraday|day's|day|) high (price|)": Column("high"),
        "high of the day": Column("high"),
        "(daily|intraday|) highs": Column("high", rows=True),
        "(daily|intraday|day's|day|) low (price|)": Column("low"),
        "low of the day": Column("low"),
        "(daily|intraday|) lows": Column("low", rows=True),
        "(daily|) (trading|trade|traded|) (volume|volumes)": Column("volume"),
        "(were|was|got|) (traded|exchanged)": Column("volume"),
        "(changed|change) hands": Column("volume"),
        "(stock|share|) price": Column("price"),
        "(trading|traded|trade) at": Column("price"),
        "(daily|stock|share|daily stock|) (prices|price history|price data|quotes)": Column(
            "close", rows=True
        ),
    }
)

_RETURN = Figure("total_return", percent=True)
_ANNUAL = "(annualised|annualized|compound annual|compounded annual)"
_BEST_DAY = Figure("best_day", Asks.DATE, percent=True)
_WORST_DAY = Figure("worst_day", Asks.DATE, percent=True)
FIGURES: Phrases[Figure] = Phrases(
    {
        "(total|overall|cumulative|) (return|returns)": _RETURN,
        "(total|overall|) (percent|percentage|%) (change|return|gain|growth|rise)": _RETURN,
        "(percent|percentage|%) increase": _RETURN,
        "(percent|percentage|%) (loss|decline|drop|decrease|fall)": Figure(
            "total_return", percent=True, loss=True
        ),
        "(gain|gained|return|returned|rise|rose|grow|grew|go up|increase|climb|appreciate)": Figure(
            "total_return"
        ),
        "(lose|lost|fall|fell|drop|decline|decrease|go down)": Figure("total_return", loss=True),
        "(perform|performed|performance)": _RETURN,
        "change": Figure("change"),
        f"{_ANNUAL} (total|) (return|returns|growth|growth rate|rate of return)": Figure(
            "annualized_return", percent=True
        ),
        "(cagr|annual rate of return)": Figure("annualized_return", percent=True),
        "(annualised|annualized|annual|historical|historic|) volatility": Figure(
            "volatility", percent=True
        ),
        "how volatile": Figure("volatility", percent=True),
        "(maximum|max|maximal|largest|biggest|deepest|greatest|worst|) (drawdown|draw down|"
        "draw - down|drawdowns)": Figure("max_drawdown", percent=True),
        "(largest|biggest|maximum|deepest) (fall|drop|decline|loss) from (a|its|the|) peak": Figure(
            "max_drawdown", percent=True
        ),
        "(largest|biggest|maximum|deepest|) (fall|drop|decline|loss) from peak to trough": Figure(
            "max_drawdown", percent=True
        ),
        "(largest|biggest|maximum|deepest|) peak - to - trough (fall|drop|decline|loss|drawdown)": (
            Figure("max_drawdown", percent=True)
        ),
        f"(best|largest|biggest|highest|greatest) {_DAILY} (return|gain|rise|increase)": Figure(
            "best_day", percent=True
        ),
        f"(worst|lowest) {_DAILY} return": Figure("worst_day", percent=True),
        f"(worst|largest|biggest|greatest) {_DAILY} (loss|fall|drop|decline)": Figure(
            "worst_day", percent=True
        ),
        "(return|gain) (on|of) (its|the) best (single|trading|) day": Figure(
            "best_day", percent=True
        ),
        "(return|loss) (on|of) (its|the) worst (single|trading|) day": Figure(
            "worst_day", percent=True
        ),
        "best (single|trading|) day": _BEST_DAY,
        "worst (single|trading|) day": _WORST_DAY,
        "(average|mean) daily (return|gain|returns)": Figure("daily_returns", percent=True),
        "(correlation|correlation coefficient) (of|between|) (the|) (daily|) (returns|) (of|)": (
            Figure("correlation", percent=False)
        ),
        "(the|) daily returns of": Figure("daily"),
        "(how|how strongly|how closely|how highly|) correlated": Figure(
            "correlation", percent=False
        ),
        "(linear|price|) (trend|trend line|trendline)": Figure("trend", percent=False),
        "(rising or falling|falling or rising|up or down)": Figure(
            "trend", Asks.DIRECTION, percent=False
        ),
    }
)
AVERAGES: Phrases[bool] = Phrases({"(simple|) moving (average|averages)": True, "sma": True})
"""After a number of days."""
OVER_DAYS: Phrases[bool] = Phrases({"(over|of|for|with) (a window of|the last|)": True})
TRADING_DAYS: Phrases[bool] = Phrases({"(trading|) (day|days)": True})
SUMMARIES: Phrases[str] = Phrases(
    {
        "(highest|maximum|max|peak|top|largest)": "max",
        "(lowest|minimum|min|smallest)": "min",
        "(average|mean|avg)": "mean",
        "median": "median",
        "(standard deviation|standard deviations|std dev|std) (of|in|)": "standard_deviation",
    }
)
"""What a period is summed up by."""
BASES: Phrases[str] = Phrases(
    {
        "(raw|unadjusted|nominal|as traded|as - traded)": "raw",
        "(split|dividend|) (- adjusted|adjusted)": "adjusted",
    }
)

PICTURES: Phrases[str] = Phrases(
    {
        "(plot|plots|draw|chart|charts|graph|visualise|visualize|sketch)": "",
        "(plot|draw|chart|graph) (it|them|that|this|the result|the results)": "",
        "(picture|diagram)": "",
        "(line) (chart|plot|graph|picture|diagram)": "line",
        "(candlestick|candlesticks|candle|candles|ohlc) (chart|plot|graph|picture|)": "candles",
    }
)
"""Words that ask for a picture, and its kind; empty if they name none."""
ANALYSES: Phrases[bool] = Phrases(
    {
        "(analyse|analyze|analysing|analyzing)": True,
        "(an|a|) (stock|) analysis (of|for)": True,
    }
)
COMPARES: Phrases[bool] = Phrases(
    {
        "(compare|comparing|compares|compared|comparison|comparison of|comparison between)": True,
        "(that|which) compares": True,
        "(vs|vs .|versus|against)": True,
    }
)
PERCENT: Phrases[bool] = Phrases(
    {
        "(in|as|as a|as an|expressed as a|expressed in) (percent|percentage|%|per cent)": True,
        "(by|) (what|which|how many) (percent|percentage|per cent|%)": True,
        "(percent|percentage|per cent)": True,
    }
)
MONEY: Phrases[bool] = Phrases({"in (us|) (dollars|usd)": True, "(by|) how many dollars": True})

DATED: Phrases[bool] = Phrases(
    {"(on|) (what|which) (trading|) (day|date)": True, "when": True, "the date (of|on which)": True}
)
LOSES: Phrases[bool] = Phrases(
    {"how (much|far) did it (lose|gain|fall|rise|drop|go up|go down)": True}
)
"""After ``the worst day of …``."""
WORTH: Phrases[bool] = Phrases({"(cost|worth|valued|value)": True})
NEXT: Phrases[bool] = Phrases(
    {"(,|:|;|.|and) (and|then|also|) (then|also|)": True, "(then|with|showing)": True}
)
"""Between two things that are wanted."""
FILLERS: Phrases[bool] = Phrases(
    {
        "(what|which|where|how) (is|was|were|are|did|does|do|have|has)": True,
        "(what's|whats)": True,
        "(at|) (what|which) (price|value|level)": True,
        "(on|of) its first (day of trading|trading day) ,": True,
        "(what|how much|how many|how high|how low|how strongly|how closely|how highly)": True,
        "(how|by how) much": True,
        "(is|was|were|are|did|do|does|had|has|have|be|would)": True,
        "(calculate|compute|determine|find|find out|work out|give|give me|tell me|show|show me)": (
            True
        ),
        "(fetch|get|list|look up|look at|get me|create|make|produce|provide|report)": True,
        "(the|a|an|its|their|of|for|on|in|at|by|it|that|me)": True,
        "(reach|hit|post|record|see|come to|end|finish)": True,
        "(stock|stocks|share|shares|stock's|shares'|equity|ticker)": True,
        "(against each other|each other|to each other|in one|into one)": True,
    }
)
"""Words that ask, or join, and say nothing of their own about a stock."""

TOPICS = (
    *("close", "closing", "closed", "closes", "open", "opened", "opening", "high", "low"),
    *("price", "prices", "quotes", "volume", "shares", "share", "stock", "stocks", "return"),
    *("returns", "volatility", "volatile", "drawdown", "draw", "plot", "chart", "graph"),
    *("analyse", "analyze", "analysis", "compare", "compares", "comparison", "correlation"),
    *("correlated", "trend", "gain", "rise", "fall", "lose", "change", "day", "average"),
    *("candlestick", "candles", "visualise", "visualize", "cagr", "growth", "sma", "loss"),
    *("opens", "highs", "lows", "highest", "lowest", "rising", "analyzing", "analysing"),
    *("grow", "drop", "decline", "increase", "percent", "percentage", "picture"),
    *("perform", "performed", "performance", "trading", "traded", "worth"),
)
"""One of these is in every question about stocks."""
