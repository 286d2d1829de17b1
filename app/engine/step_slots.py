"""How many steps of one run work at once, however its graphs are nested.

A graph that is executed has one lane for sure: its own if it is the outermost one, that of the step
which executes it if it is nested, because that step only waits meanwhile. So a nested graph always
makes progress. Every lane beyond that comes from one pool for the whole run, as wide as the widest
graph of the run, and never wider than what the process allows.
"""

from collections.abc import Callable

DEFAULT_CEILING = 64


class StepSlots:
    """The lanes of one run beyond the first."""

    __slots__ = ("_ceiling", "_extra", "_taken", "_waiting")

    def __init__(self, ceiling: int = DEFAULT_CEILING) -> None:
        """Open the pool; ``ceiling`` is how many steps may work at once at the most (from 1 up).

        Raises:
            ValueError: the ceiling is below 1.
        """
        if ceiling < 1:
            raise ValueError("A run needs at least one lane.")
        self._ceiling = ceiling
        self._extra = 0
        self._taken = 0
        self._waiting: dict[Callable[[], None], None] = {}

    def widen(self, max_parallel: int) -> None:
        """Let as many steps work at once as a graph of the run asks for."""
        self._extra = max(self._extra, min(max_parallel, self._ceiling) - 1)

    def take(self, wake: Callable[[], None]) -> bool:
        """Take a lane; False if none is free, and ``wake`` is then called once one may be."""
        if self._taken < self._extra:
            self._taken += 1
            return True
        self._waiting[wake] = None
        return False

    def give(self) -> None:
        """Give a lane back."""
        self._taken -= 1
        waiting, self._waiting = self._waiting, {}
        for wake in waiting:
            wake()

    def forget(self, wake: Callable[[], None]) -> None:
        """Wake nobody who does not wait any more."""
        self._waiting.pop(wake, None)
