"""Mutual exclusion for persistent nodes (seed 000, REQ-P3 and REQ-P4).

Inside one graph, validation keeps two parallel steps from sharing a persistent node. Across graphs
and runs its lock is taken here: once, for the time of one attempt, and with a limit.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from weakref import WeakKeyDictionary


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
