"""What a call used, checked before anything is changed."""

from decimal import Decimal
from typing import Final

Cost = Decimal | float
"""US dollars. Exact as a Decimal; a float counts as the number it prints as."""

FREE: Final = Decimal(0)

MOST_USD: Final = 1e15
"""More for one call is a mistake, and sums of such could leave the range of a JSON number."""

_MOST: Final = Decimal(MOST_USD)


def checked_cost(cost_usd: Cost) -> Decimal:
    """Return a cost as exact money.

    Raises:
        ValueError: it is negative, not finite or above ``MOST_USD``.
    """
    if isinstance(cost_usd, Decimal):
        if cost_usd.is_finite() and FREE <= cost_usd <= _MOST:
            return cost_usd
    elif 0 <= cost_usd <= MOST_USD:
        return Decimal(repr(cost_usd)) if cost_usd else FREE
    raise ValueError(f"a cost is a finite number of dollars from 0 up, not {cost_usd}")


def check_tokens(tokens: int | None) -> None:
    """Refuse a token count that is not a whole number from 0 up.

    Raises:
        ValueError: it is negative or not an integer.
    """
    if tokens is not None and not (isinstance(tokens, int) and tokens >= 0):
        raise ValueError(f"tokens are counted in whole numbers from 0 up, not {tokens}")
