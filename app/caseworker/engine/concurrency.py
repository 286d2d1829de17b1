"""How much of a run works at once: step slots, and the locks of persistent nodes.

A graph that is executed has one slot for sure: its own if it is the outermost one, that of the step
which executes it if it is nested, because that step only waits meanwhile. So a nested graph always
makes progress. Every slot beyond that comes from one pool for the whole run, as wide as the widest
graph of the run, and never wider than what the process allows.

Inside one graph, validation keeps two parallel steps from sharing a persistent node. Across graphs
and runs its lock is taken: once, for the time of one attempt, and with a limit.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import TypeVar
from weakref import WeakKeyDictionary

DEFAULT_CEILING = 64
MOST_CHARS_ON_LOOP = 2000
"""How long a text may be that is redacted on the event loop."""
PAUSE = 2
"""How many times as long as a long text took the next one waits for its turn."""

T = TypeVar("T")


class RedactionThread:
    """Redacts long texts outside the event loop, one after the other, with pauses.

    Several threads, or one without pauses, would compete with the loop for the interpreter's lock.
    """

    def __init__(self) -> None:
        self._turn = asyncio.Lock()
        self._pauses_until = 0.0

    async def call(self, redact: Callable[[], T], chars: int) -> T:
        """Call ``redact``, in the thread if it works on more than a few characters."""
        if chars <= MOST_CHARS_ON_LOOP:
            return redact()
        clock = asyncio.get_running_loop().time
        async with self._turn:
            await asyncio.sleep(self._pauses_until - clock())
            began = clock()
            try:
                return await asyncio.to_thread(redact)
            finally:
                self._pauses_until = clock() + PAUSE * (clock() - began)


class StepSlots:
    """The step slots of one run beyond the first."""

    __slots__ = ("_ceiling", "_extra", "_taken", "_waiting")

    def __init__(self, ceiling: int = DEFAULT_CEILING) -> None:
        """Open the pool; ``ceiling`` (from 1 up) is how many steps may work at once."""
        if ceiling < 1:
            raise ValueError("A run needs at least one step slot.")
        self._ceiling = ceiling
        self._extra = 0
        self._taken = 0
        self._waiting: dict[Callable[[], None], None] = {}

    def widen(self, max_parallel: int) -> None:
        """Let as many steps work at once as a graph of the run asks for."""
        self._extra = max(self._extra, min(max_parallel, self._ceiling) - 1)

    def take(self, wake: Callable[[], None]) -> bool:
        """Take a slot; False if none is free, and ``wake`` is then called once one may be."""
        if self._taken < self._extra:
            self._taken += 1
            return True
        self._waiting[wake] = None
        return False

    def give(self) -> None:
        """Give a slot back."""
        self._taken -= 1
        waiting, self._waiting = self._waiting, {}
        for wake in waiting:
            wake()

    def forget(self, wake: Callable[[], None]) -> None:
        """Wake nobody who does not wait any more."""
        self._waiting.pop(wake, None)


class DeadlockError(Exception):
    """A persistent node was not free in time; what holds it may be waiting for us."""


DEFAULT_LOCK_SECONDS = 30.0

_HELD: ContextVar[frozenset[int]] = ContextVar("held_locks", default=frozenset())


class NodeLock:
    """The lock of one persistent node, among the runs of an event loop."""

    def __init__(self, node_id: str, *, timeout_seconds: float = DEFAULT_LOCK_SECONDS) -> None:
        self.node_id = node_id
        self._timeout_seconds = timeout_seconds
        self._locks = WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock]()

    def __repr__(self) -> str:
        return repr(self.node_id)  # so that problems name the node

    @property
    def locked(self) -> bool:
        """True while somebody holds it."""
        return any(lock.locked() for lock in self._locks.values())

    @asynccontextmanager
    async def held(self) -> AsyncIterator[None]:
        """Hold the lock for the block.

        Raises:
            DeadlockError: it was not free in time, or this very work holds it already.
        """
        mine = _HELD.get()
        if id(self) in mine:
            raise DeadlockError(f"Persistent node {self.node_id!r} waits for itself.")
        lock = self._locks.setdefault(asyncio.get_running_loop(), asyncio.Lock())
        await self._acquire(lock)
        token = _HELD.set(mine | {id(self)})
        try:
            yield
        finally:
            _HELD.reset(token)
            lock.release()

    async def _acquire(self, lock: asyncio.Lock) -> None:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await lock.acquire()
        except TimeoutError:
            raise DeadlockError(
                f"Persistent node {self.node_id!r} was not free within "
                f"{self._timeout_seconds:g} seconds; it may be waiting for this step."
            ) from None
