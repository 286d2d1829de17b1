"""Who follows a run in this process, and how they learn that there is something new of it.

What other processes store notifies nobody here: followers look from time to time besides.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from app.runs.run import RunKey

Notification = asyncio.Event
"""Set when there is something new of a run; its listener clears it before looking."""


class RunNotifier:
    """Wakes all who listen to a run in this process; runs without listeners cost nothing."""

    def __init__(self) -> None:
        self._listeners: dict[RunKey, set[Notification]] = {}

    def notify(self, key: RunKey) -> None:
        """Wake all who listen to a run."""
        for notification in self._listeners.get(key, ()):
            notification.set()

    @contextmanager
    def listening(self, key: RunKey) -> Iterator[Notification]:
        """Yield a notification that is set for a run until the block ends."""
        notification = Notification()
        others = self._listeners.setdefault(key, set())
        others.add(notification)
        try:
            yield notification
        finally:
            others.discard(notification)
            if not others:
                self._listeners.pop(key, None)
