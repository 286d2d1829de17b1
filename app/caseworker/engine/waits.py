"""The waits of a run: the points at which work pauses without a call in flight.

Examples are the back-off before a retry, a pending approval, a queue for budget or for a model. A
stop ends them at once, because no result would be lost. If a limit stops only a part of a run,
calls in flight in that part finish, its waits end, and nothing starts in it any more.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from caseworker.core.budget.stops import Stop
from caseworker.engine.step_path import Area, StepPath


@dataclass(slots=True, eq=False)
class _Wait:
    path: StepPath
    limit: asyncio.Timeout
    """Interrupts the wait."""
    stop: Stop | None = None
    """The stop that interrupted the wait; None while there is none."""
    task: asyncio.Task[Any] | None = field(default_factory=asyncio.current_task)


class Waits:
    """All current waits of one run."""

    def __init__(self, begun: Callable[[], object]) -> None:
        """``begun`` is called when a wait has begun."""
        self._begun = begun
        self._waits: set[_Wait] = set()
        self.ending: tuple[tuple[Area | None, Stop], ...] = ()
        """The areas in which nothing may start, with their stops; None is the whole run."""

    @property
    def paths(self) -> list[StepPath]:
        """The paths of the steps and calls that wait."""
        return [wait.path for wait in self._waits]

    @property
    def tasks(self) -> set[object]:
        """The tasks that wait."""
        return {wait.task for wait in self._waits}

    def check(self, path: StepPath) -> None:
        """Check that a step or call may start or wait.

        Raises:
            Stop: a limit stopped the part of the run around it.
        """
        for area, stop in self.ending:
            if area is None or path in area:
                raise stop.with_traceback(None)

    @asynccontextmanager
    async def at(self, path: StepPath) -> AsyncIterator[None]:
        """Mark the block, which only waits, as a wait of the step or call with this path.

        Raises:
            Stop: a limit stopped the part of the run around it, before or during the wait.
        """
        self.check(path)
        wait = _Wait(path, asyncio.timeout(None))
        try:
            async with wait.limit:
                self._waits.add(wait)
                self._begun()
                try:
                    yield
                finally:
                    self._waits.discard(wait)
        except TimeoutError:
            if wait.stop is None:
                raise
            raise wait.stop.with_traceback(None) from None

    @contextmanager
    def stopping(self, area: Area | None) -> Iterator[Callable[[Stop], None]]:
        """Yield a function that stops an area until the block ends; None is the whole run.

        Its waits end at once, and nothing may start in it. Calls in flight continue.
        """
        stopped: list[tuple[Area | None, Stop]] = []

        def stop_area(reached: Stop) -> None:
            if stopped:
                return
            # A plain stop: only the work that reached a limit may still compose a last answer.
            stop = Stop(reached.cause)
            stopped.append((area, stop))
            self.ending += (*stopped,)
            for wait in self._waits:
                if wait.stop is None and (area is None or wait.path in area):
                    wait.stop = stop
                    wait.limit.reschedule(0)

        try:
            yield stop_area
        finally:
            self.ending = tuple(each for each in self.ending if each not in stopped)
