"""Wakes whoever waits in this process for something new of a run."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from app.runs.run import RunKey

Bell = asyncio.Event
"""Set when it is rung; whoever has heard it clears it before looking."""


class Bells:
    """A bell for everybody who listens; runs that nobody listens to cost nothing."""

    def __init__(self) -> None:
        self._listeners: dict[RunKey, set[Bell]] = {}

    def ring(self, key: RunKey) -> None:
        """Wake all who listen to a run."""
        for bell in self._listeners.get(key, ()):
            bell.set()

    @contextmanager
    def listening(self, key: RunKey) -> Iterator[Bell]:
        """Have a bell of one's own rung for a run, until the block ends."""
        bell = Bell()
        others = self._listeners.setdefault(key, set())
        others.add(bell)
        try:
            yield bell
        finally:
            others.discard(bell)
            if not others:
                self._listeners.pop(key, None)
