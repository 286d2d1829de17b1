"""Wakes listeners in this process when a run has new events.

Changes that other processes make are detected elsewhere, which then calls
:meth:`RunNotifier.notify`.
"""

import asyncio
from collections.abc import Iterator, Set
from contextlib import contextmanager

from caseworker.runs.run import RunKey

Notification = asyncio.Event
"""Event that is set when a run has changed. The listener clears it before reading the store."""


class RunNotifier:
    """Wakes the listeners of a run in this process. A run without listeners uses no resources."""

    def __init__(self) -> None:
        self._listeners: dict[RunKey, set[Notification]] = {}
        self._listened = asyncio.Event()
        self.changes = 0
        """Counter that increases whenever a run gets its first listener or loses its last one."""

    @property
    def listened_to(self) -> Set[RunKey]:
        """Keys of the runs that have listeners."""
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
        """Yield an event that :meth:`notify` sets, until the block ends."""
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
