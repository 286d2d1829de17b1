"""An event loop with a virtual clock and real sockets, for the whole service on a real database.

While a statement is in flight, the clock stands still, and statements are answered in the order of
the tasks that sent them. When every task waits for a timer, the clock jumps to the next one, so a
story of minutes takes milliseconds and ends the same way on a slow machine. A connection that
only listens for notifications does not hold the clock.

Functions given to an executor (``asyncio.to_thread``) run as one step of the loop.
"""

import asyncio
import select
import selectors
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Executor
from contextlib import contextmanager
from itertools import count
from typing import Any, TypeVar, TypeVarTuple
from unittest.mock import patch

import psycopg
from psycopg.pq import TransactionStatus

from caseworker.platform.postgres.connections import Connection
from tests.support.seeded_loop import SeededTask

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")

NOTICE_SECONDS = 0.0005
"""Real seconds that a notification may take to reach a listening connection."""
MAX_STEPS = 1_000
"""Steps of the loop between two looks at the sockets while tasks are ready."""
LOCKED_SECONDS = 0.05
"""Real seconds after which a statement counts as one that waits for the lock of another."""
STUCK_SECONDS = 60.0
"""Real seconds after which a statement without an answer fails the test."""


class StuckError(Exception):
    """A statement got no answer, or no timer and no socket can wake a task."""


class VirtualClockLoop(asyncio.SelectorEventLoop):
    """A loop whose time stands still while the database works."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waiting: dict[int, psycopg.AsyncConnection[Any]] = {}
        """Connections that wait for the server, by their socket."""
        self.owners: dict[int, int] = {}
        """Number of the task that waits for each socket."""
        super().__init__(_Selector(self))
        own: Any = self
        self.own_descriptor: int = own._ssock.fileno()
        """The descriptor by which other threads wake the loop."""
        self._numbers = count(1)
        self.set_task_factory(self._number_task)

    def time(self) -> float:
        """Return the virtual seconds since the loop was made."""
        return self.now

    def _number_task(self, loop: Any, coroutine: Any, **options: Any) -> SeededTask:
        return SeededTask(coroutine, loop=loop, number=next(self._numbers), **options)

    def add_reader(self, fd: Any, callback: Callable[[*Arguments], Any], *args: *Arguments) -> None:
        """Wait for a socket in the name of the current task."""
        self._note_owner(fd)
        super().add_reader(fd, callback, *args)

    def add_writer(self, fd: Any, callback: Callable[[*Arguments], Any], *args: *Arguments) -> None:
        """Wait for a socket in the name of the current task."""
        self._note_owner(fd)
        super().add_writer(fd, callback, *args)

    def _note_owner(self, descriptor: int) -> None:
        task = asyncio.current_task(self)
        self.owners[descriptor] = hash(task) if isinstance(task, SeededTask) else 0

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Arguments], T], *args: *Arguments
    ) -> asyncio.Future[T]:
        """Run a blocking function as a step of this loop."""
        future: asyncio.Future[T] = self.create_future()
        self.call_soon(_finish, future, func, args)
        return future


class _Selector(selectors.DefaultSelector):
    """Waits for sockets in real time, and for timers in virtual time."""

    def __init__(self, loop: VirtualClockLoop) -> None:
        super().__init__()
        self._loop = loop
        self._has_worked = False
        """Whether the server has answered since the clock moved, so that it may notify others."""
        self._steps = 0
        """Number of steps since sockets were looked at."""

    def select(self, timeout: float | None = None) -> Any:
        if timeout is not None and timeout <= 0 and self._steps < MAX_STEPS:
            self._steps += 1
            return []
        self._steps = 0
        if (key := self._oldest_statement()) is not None:
            self._has_worked = True
            return self._answer_of(key)
        events = super().select(NOTICE_SECONDS if self._has_worked else 0)
        if not events:
            if timeout is None:
                raise StuckError("Nothing is ready and no timer is set.")
            self._has_worked = False
            self._loop.now += timeout
        return events

    def _oldest_statement(self) -> selectors.SelectorKey | None:
        """Return the registration of the connection whose statement is answered next."""
        busy = [key for key in self.get_map().values() if self._expects_answer(key.fd)]
        return min(busy, key=lambda key: self._loop.owners.get(key.fd, 0), default=None)

    def _expects_answer(self, descriptor: int) -> bool:
        connection = self._loop.waiting.get(descriptor)
        if connection is None:  # it connects
            return descriptor != self._loop.own_descriptor
        return connection.pgconn.transaction_status != TransactionStatus.IDLE

    def _answer_of(self, key: selectors.SelectorKey) -> Any:
        """Wait for the answer of one statement; take another one if it waits for a lock."""
        reads = [key.fd] if key.events & selectors.EVENT_READ else []
        writes = [key.fd] if key.events & selectors.EVENT_WRITE else []
        ready = select.select(reads, writes, [], LOCKED_SECONDS)
        if mask := bool(ready[0]) * selectors.EVENT_READ | bool(ready[1]) * selectors.EVENT_WRITE:
            return [(key, mask)]
        events = super().select(STUCK_SECONDS)
        if not events:
            raise StuckError("A statement got no answer.")
        return events


@contextmanager
def virtual_clock() -> Iterator[asyncio.Runner]:
    """Yield a runner with such a loop."""
    with (
        patch.object(psycopg.AsyncConnection, "wait", _noted(psycopg.AsyncConnection.wait)),
        patch.object(Connection, "wait", _noted(Connection.wait)),
        asyncio.Runner(loop_factory=VirtualClockLoop) as runner,
    ):
        yield runner


def _noted(wait: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
    """Return ``wait`` of a connection that notes for which statement the loop waits."""

    async def noted(self: psycopg.AsyncConnection[Any], *arguments: Any, **options: Any) -> Any:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualClockLoop)
        descriptor = self.pgconn.socket
        loop.waiting[descriptor] = self
        try:
            return await wait(self, *arguments, **options)
        finally:
            loop.waiting.pop(descriptor, None)

    return noted


def run_virtually(main: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end on a loop with a virtual clock."""
    with virtual_clock() as runner:
        return runner.run(main())


def _finish(future: asyncio.Future[Any], func: Callable[..., Any], arguments: Any) -> None:
    if future.cancelled():
        return
    try:
        future.set_result(func(*arguments))
    except Exception as error:
        future.set_exception(error)
