"""How a process of the service looks for garbage: seldom, and not in what it was started with."""

import gc
from typing import Final

THRESHOLDS: Final = (10_000, 10, 10)
"""Of the three generations. A run makes some hundred objects and leaves few circles behind; with
the usual thresholds a tenth of its time would go into looking for them."""


def look_for_garbage_seldom() -> None:
    """Leave alone what exists now, modules and models above all, and look at the rest rarely.

    Said once a process has started: what is garbage by then is cleared away first.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
