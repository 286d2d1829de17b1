"""Reads what a provider of prices sends."""

import csv
import math
from collections.abc import Mapping
from datetime import UTC, date, datetime
from email.utils import parsedate_to_datetime
from typing import Final

from app.tools.stocks.prices import DailyPrice

MAX_DAYS: Final = 40_000
"""More trading days than there were in a hundred and fifty years."""
LONGEST_WAIT_SECONDS: Final = 31_536_000.0
"""A year: a longer wait, which JSON may be unable to hold, is told as this one."""

_DATE_CHARS = 10  # 2012-01-03, whatever time follows
_COLUMNS = frozenset({"date", "open", "high", "low", "close", "volume", "adjClose"})


class UnreadableError(Exception):
    """A reply that does not hold what was asked for."""


def days_in(text: str) -> tuple[DailyPrice, ...]:
    """Read a CSV with the columns of Tiingo's end-of-day prices; the earliest day comes first.

    Raises:
        UnreadableError: a column is missing, a value cannot be one, a day stands there twice, or
            there are more than ``MAX_DAYS``.
    """
    lines = text.splitlines()
    rows = csv.DictReader(lines, strict=True)
    try:
        if len(lines) > MAX_DAYS or not set(rows.fieldnames or ()) >= _COLUMNS:
            raise UnreadableError
        days = sorted(map(_day, rows))
    except (csv.Error, TypeError, ValueError, OverflowError) as error:
        raise UnreadableError from error
    if len({price.day for price in days}) < len(days):
        raise UnreadableError
    return tuple(days)


def seconds_asked(retry_after: str) -> float | None:
    """Return how long a ``Retry-After`` asks to wait, in seconds; None if it cannot be read.

    It is at most ``LONGEST_WAIT_SECONDS``.
    """
    if retry_after.isdecimal():
        return min(float(retry_after), LONGEST_WAIT_SECONDS)
    try:
        wait = parsedate_to_datetime(retry_after).astimezone(UTC) - datetime.now(UTC)
    except (ValueError, OverflowError):
        return None
    return min(max(0.0, wait.total_seconds()), LONGEST_WAIT_SECONDS)


def _day(row: Mapping[str, str]) -> DailyPrice:
    return DailyPrice(
        day=date.fromisoformat(row["date"][:_DATE_CHARS]),
        open=_price(row["open"]),
        high=_price(row["high"]),
        low=_price(row["low"]),
        close=_price(row["close"]),
        volume=_volume(row["volume"]),
        adjusted_close=_price(row["adjClose"]),
    )


def _price(text: str) -> float:
    price = float(text)
    if not 0 < price < math.inf:
        raise ValueError("not a price")
    return price


def _volume(text: str) -> int:
    shares = int(float(text))
    if shares < 0:
        raise ValueError("not a number of shares")
    return shares
