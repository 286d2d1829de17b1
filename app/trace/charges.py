"""What a call used, checked before anything is changed."""

from decimal import Decimal
from typing import Final

Cost = Decimal | float
"""US dollars. Exact as a Decimal; a float counts as the number it prints as."""

FREE: Final = Decimal(0)

MOST_USD: Final = 1e15
"""More for one call is a mistake, and sums of such could leave the range of a JSON number."""

_MOST: Final = Decimal(MOST_USD)


def checked_usage(cost_usd: Cost, tokens_in: int | None, tokens_out: int | None) -> Decimal:
    """Return the cost as exact money, if it and the tokens are what a call can use.

    Raises:
        ValueError: the cost is negative, not finite or above ``MOST_USD``, or a token count is
            negative.
    """
    if (tokens_in is not None and tokens_in < 0) or (tokens_out is not None and tokens_out < 0):
        raise ValueError(f"tokens are counted from 0 up, not {tokens_in} in and {tokens_out} out")
    if isinstance(cost_usd, Decimal):
        if cost_usd.is_finite() and FREE <= cost_usd <= _MOST:
            return cost_usd
    elif 0.0 <= cost_usd <= MOST_USD:
        return Decimal(str(cost_usd)) if cost_usd else FREE
    raise ValueError(f"a cost is a finite number of dollars from 0 up, not {cost_usd}")
