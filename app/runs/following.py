"""Following the events of a run, on any replica.

A follower reads the store at once when this process stores something of the run, and otherwise
every few tenths of a second, because what other processes store notifies nobody here. No connection
is held while there is nothing to read.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress

from app.engine.supervision import shielded
from app.runs.errors import RunNotFoundError
from app.runs.ports import Notification, RunStore
from app.runs.run import EventRecord, RunKey

POLL_SECONDS = (0.2, 0.5)
"""How often is looked while nothing is heard: first, at most."""

AT_ONCE = 500
"""How many events are read at once."""

READ_GRACE_SECONDS = 5.0
"""How long a read may still take when its follower is gone: a statement is never cut off."""


class Following:
    """Follows runs for the callers of this process."""

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._notifications: set[Notification] = set()
        self._closing = False

    def stop(self) -> None:
        """End at once whatever is followed: the process closes."""
        self._closing = True
        for notification in self._notifications:
            notification.set()

    async def batches(
        self, key: RunKey, *, after: int
    ) -> AsyncGenerator[Sequence[EventRecord], None]:
        """Yield the events behind number ``after`` until the run has ended, in order.

        A batch is empty while there is nothing new, so that a caller can show that it lives. The
        end comes early if the process closes; a caller goes on with another replica.

        Raises:
            RunNotFoundError: there is no such run.
            StoreUnavailableError: the database does not answer.
        """
        pause, longest = POLL_SECONDS
        with self._store.listening(key) as notification:
            self._notifications.add(notification)
            try:
                while not self._closing:
                    notification.clear()
                    read = self._store.events(key, after=after, limit=AT_ONCE)
                    page = await shielded(read, grace_seconds=READ_GRACE_SECONDS)
                    if page is None:
                        raise RunNotFoundError(key.run_id)
                    yield page.events
                    if page.events:
                        after, pause = page.events[-1].seq, POLL_SECONDS[0]
                    if len(page.events) < AT_ONCE:
                        if page.finished:
                            return
                        if not self._closing:
                            await wait_for_event(notification, seconds=pause)
                        pause = min(1.5 * pause, longest)
            finally:
                self._notifications.discard(notification)


async def wait_for_event(event: asyncio.Event, *, seconds: float) -> None:
    """Wait until an event is set, or until so many seconds have passed."""
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await event.wait()
