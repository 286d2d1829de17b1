"""A second plan, where the first one failed because the prices begin later than the days asked for.

``in 2012`` means the trading days of 2012. If the source says that a stock's prices begin in May
of that year, the days from then on are meant. Days that were given as dates are never changed, and
prices that end too early are not enough for a year.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import Any

from app.adapters.providers.offline.reading.words.action import Action, Reading


def within(
    reading: Reading, actions: Sequence[Action], beginnings: Mapping[str, date]
) -> tuple[Action, ...]:
    """Return the actions with the days that lie before a stock's first price left out."""
    if not reading.flexible:
        return tuple(actions)
    return tuple(_moved(action, beginnings) for action in actions)


def _moved(action: Action, beginnings: Mapping[str, date]) -> Action:
    named = [action.args.get("symbol"), *action.args.get("symbols", ())]
    firsts = [beginnings[symbol].isoformat() for symbol in named if symbol in beginnings]
    start, end = action.args.get("start"), action.args.get("end")
    first = max(firsts, default=None)
    if first is None or start is None or first <= start or (end is not None and first > end):
        return action
    args: dict[str, Any] = {**action.args, "start": first}
    return replace(action, args=args)
