"""The work of a run in progress, and the release of a run whose process was told to end.

A process that was told to end holds its runs: from then on, no step, no call and no attempt starts.
Those in flight continue. A held run is **idle** once all its work only waits: for a retry, for
budget, for a rate slot, for an approval, for its client, or because it is held. An idle run is
released, so that another process resumes it and no call in flight is lost.
"""

import asyncio

from caseworker.core.budget.stops import HandOver
from caseworker.engine.cancellation import CancellationToken
from caseworker.engine.step_path import StepPath
from caseworker.engine.waits import Waits


class Activity:
    """The steps and calls of one execution of a run that are in progress."""

    def __init__(self, token: CancellationToken) -> None:
        """``token`` is the run's token; the release trips it."""
        self.working: dict[object, StepPath] = {}
        """Paths of the steps and calls in progress. The key is the task that performs one, or any
        other object that identifies it."""
        self.waits = Waits(self.changed)
        """The steps and calls that only wait."""
        self._token = token
        self._release: HandOver | None = None

    @property
    def is_held(self) -> bool:
        """Whether no step, call or attempt may start."""
        return self._release is not None

    def hold(self, release: HandOver) -> None:
        """Let no further step, call or attempt start; stop the run by ``release`` once it is idle.

        Repeating the call changes nothing.
        """
        if self._release is None:
            self._release = release
            self.changed()

    async def start(self, path: StepPath) -> None:
        """Let a step, a call or an attempt start; while the run is held, wait for its release.

        Raises:
            Stop: the run was released, or stopped for another reason.
        """
        if self._release is not None:
            async with self.waits.at(path):
                await self._token.wait()
            self._token.check()

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
        waiting, tasks = set[str](), self.waits.tasks
        for path in self.waits.paths:
            waiting |= path.around()
            waiting.add(path.text)
        return bool(waiting) and all(
            path.text in waiting or by in tasks for by, path in self.working.items()
        )
