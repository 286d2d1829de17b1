"""Who follows a run in this process, and how they learn that there is something new of it.

Of what other processes store somebody else tells the notifier, who can see whom to look for.
"""

import asyncio
from collections.abc import Iterator, Set
from contextlib import contextmanager

from caseworker.runs.run import RunKey

Notification = asyncio.Event
"""Set when there is something new of a run; its listener clears it before looking."""


class RunNotifier:
    """Wakes all who listen to a run in this process; runs without listeners cost nothing."""

    def __init__(self) -> None:
        self._listeners: dict[RunKey, set[Notification]] = {}
        self._listened = asyncio.Event()
        self.changes = 0
        """How often a run has got its first listener, or lost its last one."""

    @property
    def listened_to(self) -> Set[RunKey]:
        """The runs that somebody listens to."""
        return self._listeners.keys()

    async def listened(self) -> None:
        """Wait until somebody listens to a run."""
        await self._listened.wait()

    def notify(self, key: RunKey) -> None:
        """Wake all who listen to a run."""
        for notification in self._listeners.get(key, ()):
            notification.set()

    @contextmanager
    def listening(self, key: RunKey) -> Iterator[Notification]:
        """Yield a notification that is set for a run until the block ends."""
        notification = Notification()
        others = self._listeners.setdefault(key, set())
        self.changes += not others
        others.add(notification)
        self._listened.set()
        try:
            yield notification
        finally:
            others.discard(notification)
            if not others:
                self._listeners.pop(key, None)
                self.changes += 1
            if not self._listeners:
                self._listened.clear()
