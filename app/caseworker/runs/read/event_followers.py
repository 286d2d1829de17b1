"""Followers of the events of runs. Those of one process share each read of new events.

A follower reads from the store until it has all stored events; concurrent reads are shared. Then it
waits with all other followers of the run for one batch: the events that this process has just
stored, or else one read. A follower that is too slow for that reads on its own until it has caught
up.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from caseworker.engine.supervision import forget_failure, set_within, shielded
from caseworker.runs.ports import EventPage, Notification
from caseworker.runs.run import EventRecord, RunKey

QUIET_SECONDS = 5.0
"""Seconds without events after which a follower receives an empty batch."""

LOOK_SECONDS = 60.0
"""Seconds after which new events are read even without a notification."""

AT_ONCE = 500

READ_GRACE_SECONDS = 5.0
"""Seconds that a read may take after its follower has disconnected; SQL statements are not
interrupted."""


@dataclass(slots=True)
class Batch:
    """Events of a run, in order and without gaps."""

    after: int
    """Sequence number that precedes the events."""
    events: Sequence[EventRecord] = ()
    is_last: bool = False
    """Whether the run has ended and has no further events."""
    encoded: bytes | None = None
    """The events as they are sent. The first follower that sends the batch sets it."""

    @property
    def until(self) -> int:
        """Sequence number of the last event so far."""
        return self.events[-1].seq if self.events else self.after

    def beyond(self, seq: int) -> "Batch":
        """Return the part of the batch after a sequence number."""
        if seq == self.after:
            return self
        newer = [event for event in self.events if event.seq > seq]
        return Batch(seq, newer, self.is_last)


class Followers:
    """The followers of all runs in this process."""

    def __init__(
        self,
        listening: Callable[[RunKey], AbstractContextManager[Notification]],
        read: Callable[[RunKey, int], Coroutine[Any, Any, EventPage]],
        stored_seq: Callable[[RunKey], int | None],
    ) -> None:
        """Read up to ``AT_ONCE`` events after a sequence number with ``read``.

        ``stored_seq`` returns the sequence number of the last stored event of a run that this
        process executes, else None.
        """
        self._listening = listening
        self._read = read
        self._stored_seq = stored_seq
        self._tails: dict[RunKey, _Tail] = {}
        self._closing = False

    def close(self) -> None:
        """End all streams."""
        self._closing = True
        for tail in self._tails.values():
            tail.notification.set()

    async def follow(self, key: RunKey, *, after: int) -> AsyncGenerator[Batch, None]:
        """Yield batches of events until the run has ended or the process shuts down."""
        async with self._tail(key) as tail:  # before the read, so that no later event is missed
            full = self._stored_seq(key) != after
            if not full:
                yield Batch(after)  # the store has no further events yet
            while not self._closing:
                batch = await (tail.stored(after) if full else tail.next(after))
                yield batch
                full, after = len(batch.events) == AT_ONCE, batch.until
                if batch.is_last:
                    return

    @asynccontextmanager
    async def _tail(self, key: RunKey) -> AsyncIterator["_Tail"]:
        tail = self._tails.get(key)
        if tail is None:
            tail = self._tails[key] = _Tail(self._listening(key), partial(self._read, key))
        tail.followers += 1
        try:
            yield tail
        finally:
            tail.followers -= 1
            if not tail.followers:
                del self._tails[key]
                await tail.close()


class _Tail:
    """The newest events of a run, read once for all its followers."""

    def __init__(
        self,
        listening: AbstractContextManager[Notification],
        read: Callable[[int], Coroutine[Any, Any, EventPage]],
    ) -> None:
        self.followers = 0
        self._read = read
        self._listening = ExitStack()
        self.notification = self._listening.enter_context(listening)
        self._newest = Batch(0)
        self._reading: asyncio.Task[Batch] | None = None
        self._catching_up: dict[int, asyncio.Task[Batch]] = {}
        """Reads in progress, by the sequence number after which they read."""
        self._reads_after = 0
        self._look_at = asyncio.get_running_loop().time() + LOOK_SECONDS

    async def close(self) -> None:
        """Stop listening; wait for a read in progress."""
        self._listening.close()
        for reading in (self._reading, *self._catching_up.values()):
            if reading is not None and not reading.done():
                reading.cancel()
                await asyncio.wait((reading,))

    async def stored(self, after: int) -> Batch:
        """Return the stored events after a sequence number, read once for concurrent callers.

        An event that such a read misses is stored later, so it sets the notification.
        """
        reading = self._catching_up.get(after)
        if reading is None:
            reading = asyncio.create_task(self.read(after), name="stored events")
            self._catching_up[after] = reading
            reading.add_done_callback(forget_failure)
            reading.add_done_callback(lambda _: self._catching_up.pop(after))
        return await asyncio.shield(reading)

    async def read(self, after: int) -> Batch:
        """Read the stored events after a sequence number."""
        page = await shielded(self._read(after), grace_seconds=READ_GRACE_SECONDS)
        return Batch(after, page.events, page.finished and len(page.events) < AT_ONCE)

    async def next(self, after: int) -> Batch:
        """Return the next events; an empty batch if there are none for ``QUIET_SECONDS``."""
        newest = self._newest
        if newest.after <= after and (after < newest.until or newest.is_last):
            return newest.beyond(after)
        if after < newest.after:
            return await self.read(after)
        if self._reading is None or self._reading.done():
            self._reads_after = after
            self._reading = asyncio.create_task(self._awaited(after), name="events")
            self._reading.add_done_callback(forget_failure)
        elif after < self._reads_after:  # it does not have all events that this read skips
            later, batch = self._reading, await self.read(after)
            if not batch.events and not batch.is_last:  # that one starts beyond the last event
                await asyncio.shield(later)
                batch = await self.read(after)
            return batch
        return (await asyncio.shield(self._reading)).beyond(after)

    async def _awaited(self, after: int) -> Batch:
        clock = asyncio.get_running_loop().time
        if not self.notification.is_set() and clock() < self._look_at:
            await set_within(self.notification, QUIET_SECONDS)
            if not self.notification.is_set():
                return Batch(after)
        page = self.notification.take(after)  # before the read, so that no later event is missed
        self._look_at = 0.0  # if the read fails, or leaves events for the next one
        if page is None:
            batch = await self.read(after)
        else:
            batch = Batch(after, page.events, page.finished)
        if len(batch.events) < AT_ONCE:
            self._look_at = clock() + LOOK_SECONDS
        if batch.events or batch.is_last:
            self._newest = batch
        return batch
