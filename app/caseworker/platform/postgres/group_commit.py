"""Group commit: many writers share one commit.

All writes of a kind use one connection. Writes that arrive during a commit form the next batch, so
concurrent runs share the cost of a commit and a lone run does not wait.

A write stays in the queue until it is answered, so the queue is the only state. After a database
outage the batch in flight is written again; every write must therefore be idempotent. A cancelled
writer removes its write, so a long outage does not fill the memory with abandoned writes. A write
that needs a locked row moves to the end of the queue and does not delay the other writes. Tenants
take turns, so that many writes of one tenant do not delay those of another.

The size of a batch is bounded in bytes. Its length is bounded by the time that the event loop needs
to resume the answered writers: the last one must not resume with a stale answer. A server that was
reached, but then went silent or aborted the statement, may be unable to execute one of the writes.
The writes of that batch are then executed one by one. A write fails alone after several such
attempts.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeAlias, TypeVar

import psycopg
import structlog

from caseworker.platform.errors import StoreUnavailableError, WriteFailedError
from caseworker.platform.fair_slots import TENANT, FairQueue
from caseworker.platform.postgres.connections import (
    ServerUnresponsiveError,
    is_broken_off,
    is_contended,
    is_refusal,
    is_unavailable,
)

Write = TypeVar("Write")
Answer = TypeVar("Answer")
Waiting: TypeAlias = asyncio.Future[Answer]
AnyConnection = psycopg.AsyncConnection[Any]

log = structlog.get_logger(__name__)

RECONNECT_SECONDS = (0.05, 2.0)
"""Initial and maximum back-off before reconnecting, in seconds."""

LOCKED_SECONDS = (0.005, 0.1)
"""Initial and maximum back-off, in seconds, before retrying writes that need locked rows. It
applies only if no other write is pending."""

STOP_SECONDS = 3.0
"""Seconds that a shutdown waits for queued writes to be committed."""

BATCH = (64, 500)
"""Maximum number of writes per commit: while the event loop is busy, and otherwise."""

BATCH_BYTES = 1024 * 1024
"""Maximum total size of the writes in one commit, in bytes. A larger write gets its own commit."""

BUSY_SECONDS = 0.05
"""Maximum time, in seconds, for the event loop to resume all writers that one commit has
answered."""

STRIKES = 4
"""Number of attempts that may stay unanswered or be aborted by the server before a write fails."""


class RetryLater(Enum):
    """Marker that ``commit`` returns instead of an answer if the write must wait for a lock."""

    LATER = "later"


@dataclass(slots=True, eq=False)
class _QueuedWrite(Generic[Write]):
    """A queued write."""

    write: Write
    size_bytes: int
    tenant: str | None
    strikes: int = 0
    """Number of times its batch got no answer or was aborted."""


class GroupCommit(Generic[Write, Answer]):
    """Collects writes in a queue and commits them in batches, each in one transaction."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[AnyConnection]],
        commit: Callable[
            [AnyConnection, Sequence[Write]], Awaitable[Sequence[Answer | RetryLater]]
        ],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Use ``commit`` to write a batch in one transaction; it returns answers in order."""
        self._connect = connect
        self._commit = commit
        self._clock = clock
        self._queue: dict[Waiting[Answer], _QueuedWrite[Write]] = {}
        self._order = FairQueue[Waiting[Answer]]()
        """The writes in ``_queue``, in the order in which they are committed."""
        self._newcomers = FairQueue[asyncio.Future[None]]()
        self._batch_limit = BATCH[0]
        self._stuck_since: float | None = None
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._connection: AnyConnection | None = None
        self._closing = False

    @property
    def stuck_seconds(self) -> float:
        """Seconds for which writes have been pending without a commit; 0 if none is pending."""
        return 0.0 if self._stuck_since is None else self._clock() - self._stuck_since

    async def start(self) -> None:
        """Connect to the database and start writing.

        Raises:
            StoreUnavailableError: the database cannot be reached.
        """
        try:
            self._connection = await self._connect()
        except (psycopg.Error, OSError) as error:
            raise StoreUnavailableError from error
        self.begin()

    def begin(self) -> None:
        """Start writing without connecting; the first write opens the connection."""
        self._task = asyncio.create_task(self._write_forever(), name="group commit")

    async def stop(self, *, grace_seconds: float = STOP_SECONDS) -> None:
        """Commit the queued writes, then stop.

        Writes that are not committed within ``grace_seconds`` fail.
        """
        self._closing = True
        self._arrived.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=grace_seconds)
            while not self._task.done():  # the first only cancels the statement on the server
                self._task.cancel()
                await asyncio.wait({self._task}, timeout=0.5)
        for answer in self._queue:
            if not answer.done():
                answer.set_exception(StoreUnavailableError())
        if self._connection is not None:
            await self._connection.close()

    async def wait_for_capacity(self, *, patience_seconds: float) -> None:
        """Wait until the queue is shorter than one batch, at most ``patience_seconds``.

        Callers use this before they add new writers, so that the current writers finish first. Each
        write that leaves the queue admits one caller; tenants take turns.
        """
        if len(self._queue) < BATCH[0]:
            return
        newcomer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._newcomers.append(newcomer, TENANT.get())
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_seconds):
                await newcomer

    def _admit(self, count: int) -> None:
        """Admit up to ``count`` waiting writers while the queue is shorter than one batch."""
        while count and self._newcomers.tenants and len(self._queue) < BATCH[0]:
            newcomer = self._newcomers.pop(next(iter(self._newcomers.tenants)))
            if not newcomer.done():
                newcomer.set_result(None)
                count -= 1

    async def submit(self, write: Write, size_bytes: int = 0) -> Answer:
        """Enqueue a write of about ``size_bytes``, and return its answer once it is committed.

        Raises:
            StoreUnavailableError: the writer is shutting down.
            WriteFailedError: the server is reachable but repeatedly failed to execute the write.
            psycopg.Error: the database rejects the write.
        """
        if self._closing:
            raise StoreUnavailableError
        answer: Waiting[Answer] = asyncio.get_running_loop().create_future()
        self._join(answer, _QueuedWrite(write, size_bytes, TENANT.get()))
        self._arrived.set()
        try:
            return await answer
        finally:
            self._leave(answer)
            if self._newcomers.tenants:
                self._admit(1)

    async def _write_forever(self) -> None:
        failures = locked = 0
        while await self._wait_for_write():
            if self._stuck_since is None:
                self._stuck_since = self._clock()
            try:
                connection = self._connection
                if connection is None or connection.closed:
                    connection = self._connection = await self._connect()
                await asyncio.sleep(0)  # writers that are about to submit join the batch
                batch = self._next_batch()
                moved = not batch or await self._write(connection, batch)
            except Exception as error:
                log.warning("database.away", error=type(error).__name__)
                # The batch is still queued, so it is written again after reconnecting.
                if self._connection is not None:
                    await self._connection.close()
                await _back_off(RECONNECT_SECONDS, failures)
                failures += 1
                continue
            failures = 0
            if moved:
                locked = 0
                await self._pace(len(batch))
            else:
                await _back_off(LOCKED_SECONDS, locked)
                locked += 1

    async def _wait_for_write(self) -> bool:
        """Wait until a write is queued; return False on shutdown with an empty queue."""
        while not self._queue:
            self._stuck_since = None
            self._admit(BATCH[0])
            if self._closing:
                return False
            self._arrived.clear()
            await self._arrived.wait()
        return True

    def _next_batch(self) -> list[Waiting[Answer]]:
        """Return the first writes of the queue; a write with strikes gets its own batch."""
        batch = list[Waiting[Answer]]()
        size = 0
        for _, waiting in self._order:
            queued = self._queue[waiting]
            size += queued.size_bytes
            if batch and (queued.strikes or size > BATCH_BYTES):
                break
            batch.append(waiting)
            if queued.strikes or len(batch) == self._batch_limit:
                break
        return batch

    async def _pace(self, answered: int) -> None:
        """Yield to the answered writers, measure how long they take, and adapt the batch size."""
        began = self._clock()
        await asyncio.sleep(0)
        took = self._clock() - began
        if took > BUSY_SECONDS:
            self._batch_limit = max(BATCH[0], int(answered * BUSY_SECONDS / took))
        elif answered == self._batch_limit:
            self._batch_limit = min(BATCH[1], 2 * self._batch_limit)

    async def _write(self, connection: AnyConnection, batch: Sequence[Waiting[Answer]]) -> bool:
        """Write a batch; return False if every write in it has to wait or be retried."""
        try:
            # No await since the batch was chosen: every write is still queued.
            writes = [self._queue[waiting].write for waiting in batch]
            answers = await self._commit(connection, writes)
        except Exception as error:
            if isinstance(error, ServerUnresponsiveError) or is_broken_off(error):
                self._strike(batch, error)
            if is_unavailable(error) or connection.closed:
                raise
            if is_broken_off(error):
                return False
            return await self._write_apart(connection, batch, error)
        self._stuck_since = None
        moved = False
        for waiting, answer in zip(batch, answers, strict=True):
            if isinstance(answer, RetryLater):
                self._to_the_end(waiting)
                continue
            moved = True
            self._leave(waiting)
            if not waiting.done():
                waiting.set_result(answer)
        return moved

    async def _write_apart(
        self, connection: AnyConnection, batch: Sequence[Waiting[Answer]], error: Exception
    ) -> bool:
        """Write one by one, so that a write that the database rejects fails alone."""
        if len(batch) == 1:
            return self._refuse(batch[0], error)
        moved = False
        for waiting in batch:
            # Its writer may have been cancelled during the writes before it.
            if waiting in self._queue:
                moved |= await self._write(connection, [waiting])
        return moved

    def _strike(self, batch: Sequence[Waiting[Answer]], error: Exception) -> None:
        """Record a strike for each write of a batch that got no answer or was aborted."""
        log.warning("database.no_answer", error=type(error).__name__, count=len(batch))
        for waiting in batch:
            queued = self._queue.get(waiting)
            if queued is None:
                continue
            queued.strikes += 1
            if len(batch) == 1 and queued.strikes >= STRIKES:
                self._fail(waiting, WriteFailedError(queued.size_bytes))
            else:
                self._to_the_end(waiting)

    def _refuse(self, waiting: Waiting[Answer], error: Exception) -> bool:
        """Fail on permanent errors; requeue on lock contention."""
        if is_contended(error):
            self._to_the_end(waiting)
            return False
        self._fail(waiting, error)
        return True

    def _fail(self, waiting: Waiting[Answer], error: Exception) -> None:
        self._leave(waiting)
        if not is_refusal(error):
            log.error("database.refused", error=type(error).__name__)
        if not waiting.done():
            waiting.set_exception(error)

    def _to_the_end(self, waiting: Waiting[Answer]) -> None:
        """Move a write to the end of its tenant's queue."""
        if (place := self._leave(waiting)) is not None:
            self._join(waiting, place)

    def _join(self, waiting: Waiting[Answer], queued: _QueuedWrite[Write]) -> None:
        self._queue[waiting] = queued
        self._order.append(waiting, queued.tenant)

    def _leave(self, waiting: Waiting[Answer]) -> _QueuedWrite[Write] | None:
        if (queued := self._queue.pop(waiting, None)) is not None:
            self._order.remove(waiting, queued.tenant)
        return queued


async def _back_off(seconds: tuple[float, float], failures: int) -> None:
    """Wait from ``seconds[0]``, doubled after each earlier failure, to at most ``seconds[1]``."""
    initial, maximum = seconds
    await asyncio.sleep(min(initial * 2 ** min(failures, 32), maximum))
