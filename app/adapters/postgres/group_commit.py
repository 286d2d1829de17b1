"""Many writers, one commit.

All runs of a process write through one connection. Whatever has gathered while the last commit was
under way is written by the next one, so a commit's cost is shared by as many runs as are busy, and
a lone run waits for nobody.

A writer may go away; its write stays in line. A database that goes away is waited for: the batch
that was under way is written again, which is why every write must bear being repeated.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import psycopg
import structlog

Write = TypeVar("Write")
Answer = TypeVar("Answer")

log = structlog.get_logger(__name__)

RECONNECT_SECONDS = (0.05, 2.0)
"""How long to wait before connecting again: first, at most."""

BATCH = 500
"""How many writes share a commit at most."""

GONE = (psycopg.OperationalError, psycopg.InterfaceError, OSError)
"""What a database that went away, or is not there yet, looks like."""


@dataclass(frozen=True, slots=True)
class _Waiting(Generic[Write, Answer]):
    write: Write
    answer: "asyncio.Future[Answer]"


class GroupCommit(Generic[Write, Answer]):
    """Gathers writes and commits them together."""

    def __init__(
        self,
        connect: Callable[[], Awaitable[psycopg.AsyncConnection[Any]]],
        commit: Callable[[psycopg.AsyncConnection[Any], Sequence[Write]], Awaitable[list[Answer]]],
    ) -> None:
        """Use ``commit`` to write a batch in one transaction; it answers in the same order."""
        self._connect = connect
        self._commit = commit
        self._line: list[_Waiting[Write, Answer]] = []
        self._arrived = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._idle = asyncio.Event()
        self._idle.set()

    async def start(self) -> None:
        """Connect and begin to write.

        Raises:
            psycopg.OperationalError: the database cannot be reached.
        """
        self._connection = await self._connect()
        self._task = asyncio.create_task(self._write_forever(), name="group commit")

    async def stop(self) -> None:
        """Write what is in line, then end."""
        await self._idle.wait()
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task})
        if self._connection is not None:
            await self._connection.close()

    async def submit(self, write: Write) -> Answer:
        """Put a write in line and wait for its commit; giving up leaves it in line."""
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._line.append(_Waiting(write, answer))
        self._idle.clear()
        self._arrived.set()
        return await answer

    async def _write_forever(self) -> None:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._line:
                batch, self._line = self._line[:BATCH], self._line[BATCH:]
                await self._write(batch)
            self._idle.set()

    async def _write(self, batch: Sequence[_Waiting[Write, Answer]]) -> None:
        pause, longest = RECONNECT_SECONDS
        while True:
            try:
                return await self._write_once(batch)
            except GONE as error:
                log.warning("database.gone", error=type(error).__name__)
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)

    async def _write_once(self, batch: Sequence[_Waiting[Write, Answer]]) -> None:
        connection = await self._connected()
        try:
            answers = await self._commit(connection, [waiting.write for waiting in batch])
        except GONE:
            await connection.close()
            raise
        except Exception as error:
            await self._write_apart(batch, error)
        else:
            for waiting, answer in zip(batch, answers, strict=True):
                if not waiting.answer.done():
                    waiting.answer.set_result(answer)

    async def _write_apart(
        self, batch: Sequence[_Waiting[Write, Answer]], error: Exception
    ) -> None:
        """Write one by one, so that a write that the database refuses fails alone."""
        if len(batch) > 1:
            for waiting in batch:
                await self._write_once([waiting])
        elif not batch[0].answer.done():
            batch[0].answer.set_exception(error)
        else:
            log.error("database.write_refused", error=type(error).__name__)

    async def _connected(self) -> psycopg.AsyncConnection[Any]:
        if self._connection is None or self._connection.closed:
            self._connection = await self._connect()
        return self._connection
