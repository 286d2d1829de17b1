"""How much work something is, counted in calls: the same on every machine, however busy it is."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any


def calls_in(work: Callable[[], object]) -> int:
    """Do ``work`` and return how many functions were called for it, built-in ones included.

    Whatever it tries, it tries by calling something; a pattern that looks at every character again
    and again is one call, so the text that patterns see has to be limited besides.
    """
    counted = 0

    def count(frame: FrameType, event: str, argument: Any) -> None:
        nonlocal counted
        counted += event in {"call", "c_call"}

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return counted
