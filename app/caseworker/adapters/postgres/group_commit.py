"""Many writers, one commit.

All writes of a kind go through one connection. Whatever has gathered while the last commit was
under way is written by the next one, so a commit's cost is shared by as many runs as are busy, and
a lone run waits for nobody.

A write stands in line until it is answered, so the line is all there is to know: a database that
goes away is waited for, and the batch that was under way is written again, which is why every write
must bear being repeated. A writer that gives up takes its write out of the line, so that a database
that is away for long does not fill the memory with what nobody waits for any more. A write that
must wait for somebody else's lock goes to the end of the line and holds nobody up.

A batch is bounded in bytes, and in number by how long the event loop needs for those who were
answered: the last of them must not begin with an old answer. A server that was reached, and then
said nothing or broke the statement off, may be unable to carry out a write of the batch. Its writes
are made one by one from then on, and one for which that happens again and again fails alone.
"""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from typing import Any, Generic, TypeAlias, TypeVar

import psycopg
import structlog

from caseworker.adapters.postgres.connections import (
    SilentServerError,
    is_away,
    is_broken_off,
    is_contended,
)
from caseworker.observability.store_errors import StoreUnavailableError, WriteFailedError

Write = TypeVar("Write")
Answer = TypeVar("Answer")
Waiting: TypeAlias = asyncio.Future[Answer]
AnyConnection = psycopg.AsyncConnection[Any]

log = structlog.get_logger(__name__)

RECONNECT_SECONDS = (0.05, 2.0)
"""How long to wait before connecting again: first, at most."""

LOCKED_SECONDS = (0.005, 0.1)
"""How long to wait before asking again for rows that are locked, if there is nothing else to do."""

STOP_SECONDS = 3.0
"""How long the end waits for what is still in line."""

BATCH = (64, 500)
"""How many writes share a commit at most: while the event loop is busy, and else."""

BATCH_BYTES = 1024 * 1024
"""How large the writes of one commit are together; a larger write is alone in its commit."""

BUSY_SECONDS = 0.05
"""How long the event loop may need for those that one commit has answered."""

STRIKES = 4
"""How often a server may be silent about a write, or break it off, before the write fails."""


class Later(Enum):
    """In place of an answer: the write has to wait for a lock."""

    LATER = "later"


@dataclass(slots=True, eq=False)
class _Place(Generic[Write]):
    """A write in line."""

    write: Write
    size_bytes: int
    strikes: int = 0
    """How often its batch got no answer, or was broken off."""


class GroupCommit(Generic[Write, Answer]):
    """Gathers writes and commits them together."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[AnyConnection]],
        commit: Callable[[AnyConnection, Sequence[Write]], Awaitable[Sequence[Answer | Later]]],
        *,
        size_of: Callable[[Write], int] = lambda _: 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Use ``commit`` to write a batch in one transaction; it answers in the same order.

        ``size_of`` returns the bytes of a write.
        """
        self._connect = connect
        self._commit = commit
        self._size_of = size_of
        self._clock = clock
        self._line: dict[Waiting[Answer], _Place[Write]] = {}
        self._newcomers: deque[asyncio.Future[None]] = deque()
        self._most = BATCH[0]
        self._stuck_since: float | None = None
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._connection: AnyConnection | None = None
        self._closing = False

    @property
    def stuck_seconds(self) -> float:
        """How long there has been something to write and nothing was answered."""
        return 0.0 if self._stuck_since is None else self._clock() - self._stuck_since

    async def start(self) -> None:
        """Connect and begin to write.

        Raises:
            StoreUnavailableError: the database cannot be reached.
        """
        try:
            self._connection = await self._connect()
        except (psycopg.Error, OSError) as error:
            raise StoreUnavailableError from error
        self.begin()

    def begin(self) -> None:
        """Begin to write; the connection is made for the first write."""
        self._task = asyncio.create_task(self._write_forever(), name="group commit")

    async def stop(self, *, grace_seconds: float = STOP_SECONDS) -> None:
        """Write what is in line, then end; what cannot be written in time is given up."""
        self._closing = True
        self._arrived.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=grace_seconds)
            while not self._task.done():  # a first cancel asks the server to let go
                self._task.cancel()
                await asyncio.wait({self._task}, timeout=0.5)
        for answer in self._line:
            if not answer.done():
                answer.set_exception(StoreUnavailableError())
        if self._connection is not None:
            await self._connection.close()

    async def until_room(self, *, patience_seconds: float) -> None:
        """Wait until the line is shorter than one commit, or patience is at its end.

        For what is about to bring new writers: those that are there are served before it. Each
        write that leaves the line lets one in, in the order in which they came.
        """
        if len(self._line) < BATCH[0]:
            return
        newcomer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._newcomers.append(newcomer)
        with suppress(TimeoutError):
            async with asyncio.timeout(patience_seconds):
                await newcomer

    def _let_one_in(self) -> None:
        while self._newcomers and len(self._line) < BATCH[0]:
            newcomer = self._newcomers.popleft()
            if not newcomer.done():
                newcomer.set_result(None)
                return

    async def submit(self, write: Write) -> Answer:
        """Put a write in line and wait for its commit.

        Raises:
            StoreUnavailableError: nothing is written any more.
            WriteFailedError: the server could not carry it out, though it was there.
            psycopg.Error: the database refuses it.
        """
        if self._closing:
            raise StoreUnavailableError
        answer: Waiting[Answer] = asyncio.get_running_loop().create_future()
        self._line[answer] = _Place(write, self._size_of(write))
        self._arrived.set()
        try:
            return await answer
        finally:
            self._line.pop(answer, None)
            self._let_one_in()

    async def _write_forever(self) -> None:
        away, locked = _Pause(*RECONNECT_SECONDS), _Pause(*LOCKED_SECONDS)
        while await self._something_in_line():
            if self._stuck_since is None:
                self._stuck_since = self._clock()
            try:
                connection = await self._connected()
                await asyncio.sleep(0)  # those just about to write join the batch
                batch = self._next_batch()
                moved = not batch or await self._write(connection, batch)
            except Exception as error:
                log.warning("database.away", error=type(error).__name__)
                await self._hang_up()
                await away.take()
                continue
            away.reset()
            if moved:
                locked.reset()
                await self._pace(len(batch))
            else:
                await locked.take()

    async def _something_in_line(self) -> bool:
        """Wait until there is something to write; False if nothing more will come."""
        while not self._line:
            self._stuck_since = None
            for _ in range(BATCH[0]):
                self._let_one_in()
            if self._closing:
                return False
            self._arrived.clear()
            await self._arrived.wait()
        return True

    def _next_batch(self) -> list[Waiting[Answer]]:
        """Return the first of the line; one that was struck is alone."""
        batch = list[Waiting[Answer]]()
        size = 0
        for waiting, place in self._line.items():
            size += place.size_bytes
            if batch and (place.strikes or size > BATCH_BYTES):
                break
            batch.append(waiting)
            if place.strikes or len(batch) == self._most:
                break
        return batch

    async def _pace(self, answered: int) -> None:
        """Let those go on who were answered, and see how long that takes."""
        began = self._clock()
        await asyncio.sleep(0)
        took = self._clock() - began
        if took > BUSY_SECONDS:
            self._most = max(BATCH[0], int(answered * BUSY_SECONDS / took))
        elif answered == self._most:
            self._most = min(BATCH[1], 2 * self._most)

    async def _write(self, connection: AnyConnection, batch: Sequence[Waiting[Answer]]) -> bool:
        """Write a batch; False if all of it has to wait for locks."""
        try:
            writes = [self._line[waiting].write for waiting in batch]
            answers = await self._commit(connection, writes)
        except Exception as error:
            if isinstance(error, SilentServerError) or is_broken_off(error):
                self._strike(batch, error)
            if is_away(error) or connection.closed:
                raise
            if is_broken_off(error):
                return False
            return await self._write_apart(connection, batch, error)
        self._stuck_since = None
        moved = [self._answer(*each) for each in zip(batch, answers, strict=True)]
        return any(moved)

    async def _write_apart(
        self, connection: AnyConnection, batch: Sequence[Waiting[Answer]], error: Exception
    ) -> bool:
        """Write one by one, so that a write that the database refuses fails alone."""
        if len(batch) == 1:
            return self._refuse(batch[0], error)
        moved = False
        for waiting in batch:
            if waiting in self._line:
                moved |= await self._write(connection, [waiting])
        return moved

    def _strike(self, batch: Sequence[Waiting[Answer]], error: Exception) -> None:
        """Remember what was being written when the server fell silent or broke off."""
        log.warning("database.no_answer", error=type(error).__name__, count=len(batch))
        for waiting in batch:
            place = self._line.get(waiting)
            if place is None:
                continue
            place.strikes += 1
            if len(batch) == 1 and place.strikes >= STRIKES:
                self._fail(waiting, WriteFailedError(place.size_bytes))
            else:
                self._to_the_end(waiting)

    def _answer(self, waiting: Waiting[Answer], answer: Answer | Later) -> bool:
        if isinstance(answer, Later):
            self._to_the_end(waiting)
            return False
        self._line.pop(waiting, None)
        if not waiting.done():
            waiting.set_result(answer)
        return True

    def _refuse(self, waiting: Waiting[Answer], error: Exception) -> bool:
        """Fail a write that would fail again; one that met somebody's lock goes on waiting."""
        if is_contended(error):
            self._to_the_end(waiting)
            return False
        self._fail(waiting, error)
        return True

    def _fail(self, waiting: Waiting[Answer], error: Exception) -> None:
        self._line.pop(waiting, None)
        log.error("database.refused", error=type(error).__name__)
        if not waiting.done():
            waiting.set_exception(error)

    def _to_the_end(self, waiting: Waiting[Answer]) -> None:
        """Let others go first."""
        if (place := self._line.pop(waiting, None)) is not None:
            self._line[waiting] = place

    async def _hang_up(self) -> None:
        if self._connection is not None:
            await self._connection.close()

    async def _connected(self) -> AnyConnection:
        if self._connection is None or self._connection.closed:
            self._connection = await self._connect()
        return self._connection


class _Pause:
    """A pause that gets longer every time it is taken."""

    def __init__(self, first: float, longest: float) -> None:
        self._first, self._longest = first, longest
        self._next = first

    def reset(self) -> None:
        self._next = self._first

    async def take(self) -> None:
        pause, self._next = self._next, min(2 * self._next, self._longest)
        await asyncio.sleep(pause)
