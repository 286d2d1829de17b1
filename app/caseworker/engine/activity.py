"""The work of a run in progress, and the release of a run whose process shuts down or drains.

A process that shuts down holds its runs: from then on, no step, no call and no attempt starts.
Those in flight continue. A held run is **idle** once all its work only waits: for a retry, for
budget, for a rate slot, for an approval, for its client, or because it is held. An idle run is
released, so that another process resumes it and no call in flight is lost.

A stop ends all waits at once, because no result would be lost. If a limit stops only a part of a
run, calls in flight in that part finish, its waits end, and nothing starts in it any more.

See docs/internals.md, "How a graph is executed".
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from caseworker.core.budget.stops import HandOver, Stop
from caseworker.engine.cancellation import CancellationToken
from caseworker.engine.step_path import Area, StepPath


@dataclass(slots=True, eq=False)
class _Wait:
    path: StepPath
    limit: asyncio.Timeout
    """Interrupts the wait."""
    stop: Stop | None = None
    """The stop that interrupted the wait; None while there is none."""
    task: asyncio.Task[Any] | None = field(default_factory=asyncio.current_task)


class Activity:
    """The steps and calls of one execution of a run that are in progress."""

    def __init__(self, token: CancellationToken) -> None:
        """``token`` is the run's token; the release trips it."""
        self.working: dict[object, StepPath] = {}
        """Paths of the steps and calls in progress. The key is the task that performs one, or any
        other object that identifies it."""
        self._waits: set[_Wait] = set()
        self.ending: tuple[tuple[Area | None, Stop], ...] = ()
        """The areas in which nothing may start, with their stops; None is the whole run."""
        self.is_held = False
        """Whether no step, call or attempt may start."""
        self._token = token
        self._release: HandOver | None = None

    def hold(self, release: HandOver) -> None:
        """Start no further step, call or attempt; stop the run by ``release`` once it is idle.

        Repeating the call changes nothing.
        """
        if self._release is None:
            self._release, self.is_held = release, True
            self.changed()

    async def start(self, path: StepPath) -> None:
        """Return if a step, call or attempt may start; while the run is held, wait for its release.

        Raises:
            Stop: the run was released, or stopped for another reason.
        """
        if self._release is not None:
            async with self.waits(path):
                await self._token.wait()
            self._token.check()

    @property
    def waiting(self) -> list[StepPath]:
        """The paths of the steps and calls that wait."""
        return [wait.path for wait in self._waits]

    def check(self, path: StepPath) -> None:
        """Check that a step or call may start or wait.

        Raises:
            Stop: a limit stopped the part of the run around it.
        """
        for area, stop in self.ending:
            if area is None or path in area:
                raise stop.with_traceback(None)

    @contextmanager
    def works(self, path: StepPath) -> Iterator[None]:
        """Mark the block as work of a step or call."""
        key = object()
        self.working[key] = path
        try:
            yield
        finally:
            del self.working[key]
            self.changed()

    @asynccontextmanager
    async def waits(self, path: StepPath) -> AsyncIterator[None]:
        """Mark the block, which only waits, as a wait of the step or call with this path.

        Raises:
            Stop: a limit stopped the part of the run around it, before or during the wait.
        """
        self.check(path)
        wait = _Wait(path, asyncio.timeout(None))
        try:
            async with wait.limit:
                self._waits.add(wait)
                self.changed()
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

    def changed(self) -> None:
        """Release the run if it is held, and idle after the current step of the event loop.

        The task that called this may start further work before it waits.
        """
        if self._release is not None:
            asyncio.get_running_loop().call_soon(self._release_if_idle)

    def _release_if_idle(self) -> None:
        if self._release is not None and self._is_idle():
            self._token.trip(self._release)

    def _is_idle(self) -> bool:
        """Return whether some work waits, and all other work encloses it.

        A run without waiting work is about to start a step, or to end.
        """
        waiting, tasks = set[str](), {wait.task for wait in self._waits}
        for path in self.waiting:
            waiting |= path.enclosing_paths()
            waiting.add(path.text)
        return bool(waiting) and all(
            path.text in waiting or by in tasks for by, path in self.working.items()
        )
