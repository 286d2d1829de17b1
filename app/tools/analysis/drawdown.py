"""How far values fell below their highest value so far."""

from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from app.tools.analysis.observations import Finding, Observations, Options


def drawdowns(values: Sequence[float]) -> list[float]:
    """Return 1 - value / highest value so far, each from 0 to below 1; values are above zero."""
    return [1 - value / peak for value, peak in zip(values, accumulate(values, max), strict=True)]


def deepest(values: Sequence[float]) -> tuple[float, int, int]:
    """Return the largest drawdown as a fraction, and the places of its peak and its trough.

    The trough is the first place of that drawdown, the peak the last place of the highest value
    before it. Values that never fall have a drawdown of 0 with peak and trough at the beginning.
    """
    falls = drawdowns(values)
    trough = falls.index(max(falls))
    top = max(values[: trough + 1])
    peak = max(place for place in range(trough + 1) if values[place] == top)
    return falls[trough], peak, trough


def max_drawdown(observed: Observations, options: Options) -> Finding:
    """Return the deepest fall from a peak to a later trough, as a positive percentage."""
    fall, peak, trough = deepest(observed.positive())
    details: dict[str, Any] = {"note": "The values never fell below an earlier one."}
    if fall > 0:
        details = {"peak": observed.place(peak), "trough": observed.place(trough)}
    return Finding(
        value=100 * fall,
        unit="percent",
        formula="the largest 1 - value / highest value so far",
        details=details,
    )
