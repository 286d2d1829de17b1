"""The work of a run in progress, and the release of a run whose process shuts down or drains.

A process that shuts down holds its runs: from then on, no step, no call and no attempt starts.
Those in flight continue. A held run is **idle** once all its work only waits: for a retry, for
budget, for a rate slot, for an approval, for its client, or because it is held. An idle run is
released, so that another process resumes it and no call in flight is lost.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from caseworker.core.budget.stops import HandOver
from caseworker.engine.cancellation import CancellationToken
from caseworker.engine.step_path import StepPath


class Activity:
    """The steps and calls of one execution of a run that are in progress."""

    def __init__(self, token: CancellationToken) -> None:
        """``token`` is the run's token; the release trips it."""
        self.working: dict[object, StepPath] = {}
        """Paths of the steps and calls in progress. The key is the task that performs one, or any
        other object that identifies it."""
        self._waiting: dict[object, tuple[StepPath, asyncio.Task[Any] | None]] = {}
        """Paths of the steps and calls that only wait, with their tasks."""
        self._token = token
        self._release: HandOver | None = None

    @property
    def is_held(self) -> bool:
        """Whether no step, call or attempt may start."""
        return self._release is not None

    def hold(self, release: HandOver) -> None:
        """Start no further step, call or attempt; stop the run by ``release`` once it is idle.

        Repeating the call changes nothing.
        """
        if self._release is None:
            self._release = release
            self.changed()

    async def start(self, path: StepPath) -> None:
        """Return if a step, call or attempt may start; while the run is held, wait for its release.

        Raises:
            Stop: the run was released, or stopped for another reason.
        """
        if self._release is not None:
            with self.waits(path):
                await self._token.wait()
            self._token.check()

    @contextmanager
    def waits(self, path: StepPath) -> Iterator[None]:
        """Note that the step or call at ``path`` only waits while the block runs."""
        wait = object()
        self._waiting[wait] = path, asyncio.current_task()
        self.changed()
        try:
            yield
        finally:
            del self._waiting[wait]

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
        waiting, tasks = set[str](), set[object]()
        for path, task in self._waiting.values():
            waiting |= path.around()
            waiting.add(path.text)
            tasks.add(task)
        return bool(waiting) and all(
            path.text in waiting or by in tasks for by, path in self.working.items()
        )
