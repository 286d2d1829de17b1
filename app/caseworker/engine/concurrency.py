"""Concurrency limits of a run: step slots, and locks for persistent nodes.

Every executing graph has one guaranteed slot. The outermost graph has its own; a nested graph uses
the slot of the step that executes it, because that step only waits. So a nested graph always makes
progress. All further slots come from one pool per run. The size of the pool is the largest
``max_parallel`` of the run's graphs, capped by a limit of the process.

A persistent node keeps state between steps, so only one step may use it at a time. Within a graph,
validation ensures that. Across graphs and runs, each attempt holds the node's lock, which is
acquired with a timeout.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from contextvars import ContextVar
from weakref import WeakKeyDictionary

from caseworker.platform.fair_slots import TENANT, FairSlots

DEFAULT_CEILING = 64
TURN_SECONDS = 0.025
"""Time, in seconds, for which the steps of all runs together may block the event loop."""

BUSY_SECONDS = 0.0005
"""The same time for a run that has already started a step in this iteration of the loop.

Such runs delay all other runs. The short turns make a wide map a tenth slower. Runs with one step
in an iteration continue together: if 16 of them take short turns, their journal writes no longer
share commits, and Postgres uses a third more CPU.
"""


class LoopTurns:
    """Limits how long steps that never wait block the event loop, for all runs together.

    Runs that continue after the end of a turn do so one by one, in different iterations of the
    loop; their tenants take turns.
    """

    def __init__(self) -> None:
        self._next = FairSlots(1)
        self._began_at = 0.0
        self._started = set[object]()
        """The runs that have started a step in this iteration of the loop."""

    async def pause(self, run: object) -> None:
        """Return at once, or in another iteration of the loop if the turn of a run has ended."""
        if self.is_over(run):
            await self.next()

    def is_over(self, run: object) -> bool:
        """Return whether the turn of a run has ended, before it starts a step."""
        loop = asyncio.get_running_loop()
        if not self._started:
            self._began_at = loop.time()
            loop.call_soon(self._started.clear)
        most = BUSY_SECONDS if run in self._started else TURN_SECONDS
        self._started.add(run)
        return loop.time() - self._began_at >= most

    async def next(self) -> None:
        """Return in another iteration of the loop, when those that came before have had theirs."""
        async with self._next.held():
            # Two iterations: one makes due timers ready, the next runs their callbacks.
            await asyncio.sleep(0)
            await asyncio.sleep(0)


class StepSlots:
    """The pool of step slots that the graphs of one run share, beyond one slot per graph."""

    __slots__ = ("_ceiling", "_extra", "_taken", "_waiting", "turns")

    def __init__(self, ceiling: int = DEFAULT_CEILING, turns: LoopTurns | None = None) -> None:
        """Open an empty pool; ``ceiling`` (at least 1) limits the run's concurrent steps.

        ``turns`` are the turns that all runs of the process share.
        """
        if ceiling < 1:
            raise ValueError("A run needs at least one step slot.")
        self.turns = turns or LoopTurns()
        self._ceiling = ceiling
        self._extra = 0
        self._taken = 0
        self._waiting: dict[Callable[[], None], None] = {}

    def widen(self, max_parallel: int) -> None:
        """Grow the pool to suit a graph's ``max_parallel``, up to the ceiling."""
        self._extra = max(self._extra, min(max_parallel, self._ceiling) - 1)

    def take(self, wake: Callable[[], None]) -> bool:
        """Acquire a slot; if none is free, return False and call ``wake`` once one is released."""
        if self._taken < self._extra:
            self._taken += 1
            return True
        self._waiting[wake] = None
        return False

    def give(self) -> None:
        """Release a slot, and call the ``wake`` callbacks of all waiters."""
        self._taken -= 1
        # Wake all waiters: one acquires the slot, the others register again in ``take``.
        waiting, self._waiting = self._waiting, {}
        for wake in waiting:
            wake()

    def forget(self, wake: Callable[[], None]) -> None:
        """Remove a waiter that :meth:`take` registered but that no longer waits."""
        self._waiting.pop(wake, None)


class DeadlockError(Exception):
    """Acquiring a persistent node's lock timed out; its holder may be waiting for this step."""


DEFAULT_LOCK_SECONDS = 30.0

_UNNOTED = nullcontext()
_HELD: ContextVar[frozenset[int]] = ContextVar("held_locks", default=frozenset())


class NodeLock:
    """The lock of one persistent node, shared by all runs on an event loop; tenants take turns."""

    def __init__(self, node_id: str, *, timeout_seconds: float = DEFAULT_LOCK_SECONDS) -> None:
        self.node_id = node_id
        self._timeout_seconds = timeout_seconds
        # One lock per event loop, because its waiters are futures of one loop.
        self._locks = WeakKeyDictionary[asyncio.AbstractEventLoop, FairSlots]()

    def __repr__(self) -> str:
        return repr(self.node_id)  # so that problems name the node

    @property
    def locked(self) -> bool:
        """Whether the lock is held, on any event loop."""
        return any(lock.is_full for lock in self._locks.values())

    @asynccontextmanager
    async def held(
        self, waiting: AbstractAsyncContextManager[object] = _UNNOTED
    ) -> AsyncIterator[None]:
        """Acquire the lock, and hold it while the block runs.

        ``waiting`` is a context that is active while the lock is being acquired.

        Raises:
            DeadlockError: the lock timed out, or the current task or an enclosing one holds it.
        """
        mine = _HELD.get()  # child tasks inherit it, so nested graphs know their parents' locks
        if id(self) in mine:
            raise DeadlockError(f"Persistent node {self.node_id!r} waits for itself.")
        lock = self._locks.setdefault(asyncio.get_running_loop(), FairSlots(1))
        tenant = TENANT.get()
        async with waiting:
            await self._acquire(lock, tenant)
        token = _HELD.set(mine | {id(self)})
        try:
            yield
        finally:
            _HELD.reset(token)
            lock.release(tenant)

    async def _acquire(self, lock: FairSlots, tenant: str | None) -> None:
        try:
            async with asyncio.timeout(self._timeout_seconds):
                await lock.acquire(tenant)
        except TimeoutError:
            raise DeadlockError(
                f"Persistent node {self.node_id!r} was not free within "
                f"{self._timeout_seconds:g} seconds; it may be waiting for this step."
            ) from None
