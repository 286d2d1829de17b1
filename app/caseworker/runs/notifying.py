"""Notifies listeners in this process when a run has new events.

Another component listens for changes made by other processes and calls :meth:`RunNotifier.notify`.
"""

import asyncio
from collections.abc import Iterator, Set
from contextlib import contextmanager

from caseworker.runs.run import RunKey

Notification = asyncio.Event
"""Set when a run has news; the listener clears it before reading the store."""


class RunNotifier:
    """Wakes all listeners of a run in this process; runs without listeners cost nothing."""

    def __init__(self) -> None:
        self._listeners: dict[RunKey, set[Notification]] = {}
        self._listened = asyncio.Event()
        self.changes = 0
        """Counter, incremented when a run gets its first listener or loses its last one."""

    @property
    def listened_to(self) -> Set[RunKey]:
        """The runs that have listeners."""
        return self._listeners.keys()

    async def listened(self) -> None:
        """Wait until any run has a listener."""
        await self._listened.wait()

    def notify(self, key: RunKey) -> None:
        """Wake all listeners of a run."""
        for notification in self._listeners.get(key, ()):
            notification.set()

    @contextmanager
    def listening(self, key: RunKey) -> Iterator[Notification]:
        """Yield a notification that :meth:`notify` sets until the block ends."""
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
