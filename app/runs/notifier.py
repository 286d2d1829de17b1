"""Wakes whoever waits in this process for something new of a run."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from app.runs.run import RunKey

Notification = asyncio.Event
"""Set when it is rung; whoever has heard it clears it before looking."""


class RunNotifier:
    """A bell for everybody who listens; runs that nobody listens to cost nothing."""

    def __init__(self) -> None:
        self._listeners: dict[RunKey, set[Notification]] = {}

    def notify(self, key: RunKey) -> None:
        """Wake all who listen to a run."""
        for notification in self._listeners.get(key, ()):
            notification.set()

    @contextmanager
    def listening(self, key: RunKey) -> Iterator[Notification]:
        """Have a bell of one's own rung for a run, until the block ends."""
        notification = Notification()
        others = self._listeners.setdefault(key, set())
        others.add(notification)
        try:
            yield notification
        finally:
            others.discard(notification)
            if not others:
                self._listeners.pop(key, None)
