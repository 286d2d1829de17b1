"""Concurrency limits of a run: step slots, and locks for persistent nodes.

Every executing graph has one guaranteed slot. The outermost graph has its own; a nested graph uses
the slot of the step that executes it, because that step only waits. So a nested graph always makes
progress. All further slots come from one pool per run. The size of the pool is the largest
``max_parallel`` of the run's graphs, capped by a limit of the process.

A persistent node keeps state between steps, so only one step may use it at a time. Within a graph,
validation ensures that. Across graphs and runs, each attempt holds the node's lock, which is
acquired with a timeout.

See docs/internals.md, "How a graph is executed".
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
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

OTHERS_SECONDS = 1.0
"""Time, in seconds, for which a tenant counts as active after one of its steps."""

PAUSE_SECONDS = 0.002
"""Time, in seconds, between the starts of two turns of a tenant while other tenants are active.

Without it a wide map uses the whole event loop and half of the database, and small runs of other
tenants take five to nine times as long. With it they take 1.6 times as long, and the map twice.
"""

PACED_SECONDS = 0.001
"""Time, in seconds, for which such a turn lasts."""

BURST_STEPS = 100
"""Number of steps that a tenant starts without such pauses, after a time without steps."""

MAX_PACES = 1000
"""Number of tenants at which those without recent steps are dropped."""


@dataclass(slots=True)
class _Pace:
    """The steps of a tenant, for the time in which other tenants are active as well."""

    burst_at: float
    """Loop time at which the burst is complete again; each step moves it by one pause."""
    turn_at: float = 0.0
    """Loop time at which the latest short turn began."""


class LoopTurns:
    """Limits how long steps that never wait block the event loop, for all runs together.

    Runs that continue after the end of a turn do so one by one, in different iterations of the
    loop; their tenants take turns. While several tenants are active, a tenant that starts many
    steps pauses between its turns.
    """

    def __init__(self) -> None:
        self._next = FairSlots(1)
        self._after_pause = FairSlots(1)
        self._tenant: str | None = None
        """Tenant of the latest step."""
        self._others_at = -OTHERS_SECONDS
        """Loop time of the latest step that followed one of another tenant."""
        self._paces: dict[str | None, _Pace] = {}
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
        now, tenant = loop.time(), TENANT.get()
        if tenant != self._tenant:
            if self._tenant is not None:
                self._others_at = now
            self._tenant = tenant
        pace = self._paces.get(tenant) or self._new_pace(tenant, now)
        burst = BURST_STEPS * PAUSE_SECONDS
        pace.burst_at = min(max(pace.burst_at, now), now + burst) + PAUSE_SECONDS
        if self._is_paced(pace, now):
            if now - pace.turn_at >= PAUSE_SECONDS:
                pace.turn_at = now
            return now - pace.turn_at >= PACED_SECONDS
        if not self._started:
            self._began_at = now
            loop.call_soon(self._started.clear)
        limit = BUSY_SECONDS if run in self._started else TURN_SECONDS
        self._started.add(run)
        return now - self._began_at >= limit

    async def next(self) -> None:
        """Return in another iteration of the loop, when those that came before have had theirs."""
        pace = self._paces.get(TENANT.get())
        if pace is not None and self._is_paced(pace, asyncio.get_running_loop().time()):
            async with self._after_pause.held():
                await asyncio.sleep(PAUSE_SECONDS)
            return
        async with self._next.held():
            # Two iterations: one makes due timers ready, the next runs their callbacks.
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    def _is_paced(self, pace: _Pace, now: float) -> bool:
        burst = BURST_STEPS * PAUSE_SECONDS
        return now - self._others_at < OTHERS_SECONDS and pace.burst_at > now + burst

    def _new_pace(self, tenant: str | None, now: float) -> _Pace:
        if len(self._paces) >= MAX_PACES:
            self._paces = {key: each for key, each in self._paces.items() if each.burst_at > now}
        return self._paces.setdefault(tenant, _Pace(now))


class StepSlots:
    """The pool of step slots that the graphs of one run share, beyond one slot per graph."""

    __slots__ = ("_ceiling", "_extra", "_in_use", "_waiting", "turns")

    def __init__(self, ceiling: int = DEFAULT_CEILING, turns: LoopTurns | None = None) -> None:
        """Open an empty pool; ``ceiling`` (at least 1) limits the run's concurrent steps.

        ``turns`` are the turns that all runs of the process share.
        """
        if ceiling < 1:
            raise ValueError("A run needs at least one step slot.")
        self.turns = turns or LoopTurns()
        self._ceiling = ceiling
        self._extra = 0
        self._in_use = 0
        self._waiting: dict[Callable[[], None], None] = {}

    def widen(self, max_parallel: int) -> None:
        """Grow the pool to suit a graph's ``max_parallel``, up to the ceiling."""
        self._extra = max(self._extra, min(max_parallel, self._ceiling) - 1)

    def acquire(self, wake: Callable[[], None]) -> bool:
        """Acquire a slot; if none is free, return False and call ``wake`` once one is released."""
        if self._in_use < self._extra:
            self._in_use += 1
            return True
        self._waiting[wake] = None
        return False

    def release(self) -> None:
        """Release a slot, and call the ``wake`` callbacks of all waiters."""
        self._in_use -= 1
        # Wake all waiters: one acquires the slot, the others register again in ``take``.
        waiting, self._waiting = self._waiting, {}
        for wake in waiting:
            wake()

    def forget(self, wake: Callable[[], None]) -> None:
        """Remove a waiter that :meth:`acquire` registered but that no longer waits."""
        self._waiting.pop(wake, None)


class DeadlockError(Exception):
    """Acquiring a persistent node's lock timed out; its holder may be waiting for this step."""


DEFAULT_LOCK_SECONDS = 30.0

_UNNOTED = nullcontext()
_LOCKS_OF_TASK: ContextVar[frozenset[int]] = ContextVar("held_locks", default=frozenset())


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
        mine = (
            _LOCKS_OF_TASK.get()
        )  # child tasks inherit it, so nested graphs know their parents' locks
        if id(self) in mine:
            raise DeadlockError(f"Persistent node {self.node_id!r} waits for itself.")
        lock = self._locks.setdefault(asyncio.get_running_loop(), FairSlots(1))
        tenant = TENANT.get()
        async with waiting:
            await self._acquire(lock, tenant)
        token = _LOCKS_OF_TASK.set(mine | {id(self)})
        try:
            yield
        finally:
            _LOCKS_OF_TASK.reset(token)
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
