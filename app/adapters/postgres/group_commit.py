"""Many writers, one commit.

All writes of a kind go through one connection. Whatever has gathered while the last commit was
under way is written by the next one, so a commit's cost is shared by as many runs as are busy, and
a lone run waits for nobody.

A write stands in line until it is answered, so the line is all there is to know: a database that
goes away is waited for, and the batch that was under way is written again, which is why every write
must bear being repeated. A writer that gives up takes its write out of the line, so that a database
that is away for long does not fill the memory with what nobody waits for any more. A write that
must wait for somebody else's lock keeps its place and holds nobody up.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from enum import Enum
from itertools import islice
from typing import Any, Generic, TypeAlias, TypeVar

import psycopg
import structlog

from app.adapters.postgres.connections import is_away, is_contended
from app.runs.errors import StoreUnavailableError

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

BATCH = 500
"""How many writes share a commit at most."""


class Later(Enum):
    """In place of an answer: the write has to wait for a lock."""

    LATER = "later"


class GroupCommit(Generic[Write, Answer]):
    """Gathers writes and commits them together."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[AnyConnection]],
        commit: Callable[[AnyConnection, Sequence[Write]], Awaitable[Sequence[Answer | Later]]],
    ) -> None:
        """Use ``commit`` to write a batch in one transaction; it answers in the same order."""
        self._connect = connect
        self._commit = commit
        self._line: dict[Waiting[Answer], Write] = {}
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._connection: AnyConnection | None = None
        self._closing = False

    async def start(self) -> None:
        """Connect and begin to write.

        Raises:
            StoreUnavailableError: the database cannot be reached.
        """
        try:
            self._connection = await self._connect()
        except (psycopg.Error, OSError) as error:
            raise StoreUnavailableError from error
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

    async def submit(self, write: Write) -> Answer:
        """Put a write in line and wait for its commit.

        Raises:
            StoreUnavailableError: nothing is written any more.
        """
        if self._closing:
            raise StoreUnavailableError
        answer: Waiting[Answer] = asyncio.get_running_loop().create_future()
        self._line[answer] = write
        self._arrived.set()
        try:
            return await answer
        finally:
            self._line.pop(answer, None)

    async def _write_forever(self) -> None:
        away, locked = _Pause(*RECONNECT_SECONDS), _Pause(*LOCKED_SECONDS)
        while await self._something_in_line():
            try:
                connection = await self._connected()
                await asyncio.sleep(0)  # those just about to write join the batch
                batch = list(islice(self._line, BATCH))
                moved = not batch or await self._write(connection, batch)
            except Exception as error:
                log.warning("database.away", error=type(error).__name__)
                await self._hang_up()
                await away.take()
                continue
            away.reset()
            if moved:
                locked.reset()
            else:
                await locked.take()

    async def _something_in_line(self) -> bool:
        """Wait until there is something to write; False if nothing more will come."""
        while not self._line:
            if self._closing:
                return False
            self._arrived.clear()
            await self._arrived.wait()
        return True

    async def _write(self, connection: AnyConnection, batch: Sequence[Waiting[Answer]]) -> bool:
        """Write a batch; False if all of it has to wait for locks."""
        try:
            answers = await self._commit(connection, [self._line[waiting] for waiting in batch])
        except Exception as error:
            if is_away(error) or connection.closed:
                raise
            return await self._write_apart(connection, batch, error)
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

    def _answer(self, waiting: Waiting[Answer], answer: Answer | Later) -> bool:
        if isinstance(answer, Later):
            return False
        self._line.pop(waiting, None)
        if not waiting.done():
            waiting.set_result(answer)
        return True

    def _refuse(self, waiting: Waiting[Answer], error: Exception) -> bool:
        """Fail a write that would fail again; one that met somebody's lock keeps its place."""
        if is_contended(error):
            return False
        self._line.pop(waiting, None)
        log.error("database.refused", error=type(error).__name__)
        if not waiting.done():
            waiting.set_exception(error)
        return True

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
