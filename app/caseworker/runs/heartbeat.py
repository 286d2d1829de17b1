"""What a process does as long as it lives: loops that are restarted, and the heartbeat."""

import asyncio
from collections.abc import Awaitable, Callable, Set
from dataclasses import dataclass, field

import structlog

from caseworker.engine.cancellation import is_being_cancelled
from caseworker.engine.supervision import shielded
from caseworker.observability.store_errors import StoreUnavailableError
from caseworker.runs.executor import RunExecutor
from caseworker.runs.ports import RunStore, WorkerStore
from caseworker.runs.run import RunKey

log = structlog.get_logger(__name__)

BEAT_GRACE_SECONDS = 5.0
"""How long a beat may still take when the process ends: its statements are not cut off."""

RESTART_SECONDS = (0.1, 5.0)
"""How long a loop that ended waits before it is started again: first, at most."""

STOP_AGAIN_SECONDS = 1.0
"""How long a loop that was cancelled is waited for before it is cancelled again."""

WORKING_SECONDS = 1.0
"""How much longer than the time before a loop must have run, after it ended twice or more, to count
as working: one that waits in vain for its connection runs for as long as it waits."""

CONNECT_SECONDS = 10.0
"""How long a connection is waited for: whoever ran longer before had one."""

STEADY_SECONDS = 30.0
"""How long a loop must have run for the next wait to be the first one again."""


class Loops:
    """Starts loops again when they end, whether they failed or returned."""

    def __init__(self) -> None:
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._up_at: dict[str, float] = {}
        """When each loop that has ended at least twice counts as working again."""

    def keep(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        """Run ``loop`` for ever."""
        self._tasks[name] = asyncio.create_task(self._forever(name, loop), name=name)

    def failing(self) -> list[str]:
        """Return the names of the loops that end again and again as soon as they are started."""
        now = asyncio.get_running_loop().time()
        return sorted(name for name, up_at in self._up_at.items() if now < up_at)

    async def stop(self) -> None:
        """End all loops.

        They are cancelled until they have ended: a loop that was just failing may answer a cancel
        with its failure, as a task group does whose tasks have failed.
        """
        left = set(self._tasks.values())
        while left:
            for task in left:
                task.cancel()
            _, left = await asyncio.wait(left, timeout=STOP_AGAIN_SECONDS)

    async def _forever(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        first, longest = RESTART_SECONDS
        pause = first
        clock = asyncio.get_running_loop().time
        while True:
            began = clock()
            await _once(name, loop)
            if (ran := clock() - began) > STEADY_SECONDS:
                pause = first
            if pause > first:
                self._up_at[name] = clock() + pause + min(ran, CONNECT_SECONDS) + WORKING_SECONDS
            await asyncio.sleep(pause)
            pause = min(2 * pause, longest)


async def _once(name: str, loop: Callable[[], Awaitable[None]]) -> None:
    """Run a loop until it ends, however it ends.

    Raises:
        asyncio.CancelledError: this task is being cancelled.
    """
    try:
        await loop()
        log.warning("loop.ended", loop=name)
    except asyncio.CancelledError as error:
        if is_being_cancelled():
            raise
        log.warning("loop.failed", loop=name, error=type(error).__name__)
    except Exception as error:
        log.warning("loop.failed", loop=name, error=type(error).__name__)
    if is_being_cancelled():
        raise asyncio.CancelledError


@dataclass(slots=True, kw_only=True)
class Heartbeat:
    """Records that this process lives, and re-reads which runs are its own or must be cancelled.

    A notification that was lost delays a cancel by at most one beat. A run that belongs to this
    process although it is executed nowhere (its claim was committed, but the answer of the commit
    was lost) is given back to the queue, and has lost an attempt only if it broke here. A run that
    is executed here although another worker owns it is stopped: it goes on elsewhere. Both must
    have been seen for an interval, because a beat may see a run while it is being begun or ended.
    """

    workers: WorkerStore
    store: RunStore
    executor: RunExecutor
    interval_seconds: float
    drain_seconds: float
    """How long runs may still take here once the process is to be drained."""
    _draining: asyncio.Task[None] | None = None
    _beaten_at: float = field(init=False)
    _orphans: "_SeenFor" = field(init=False)
    _strays: "_SeenFor" = field(init=False)

    def __post_init__(self) -> None:
        """Begin with nothing seen."""
        self._beaten_at = asyncio.get_running_loop().time()
        self._orphans, self._strays = (_SeenFor(0.9 * self.interval_seconds) for _ in range(2))

    @property
    def silent_seconds(self) -> float:
        """How long ago the last beat got through."""
        return asyncio.get_running_loop().time() - self._beaten_at

    @property
    def draining(self) -> bool:
        """Whether somebody has asked this process to take no more runs."""
        return self._draining is not None

    async def run(self) -> None:
        """Beat for ever; a database that is away is tried again with the next beat."""
        away = False
        while True:
            try:
                await shielded(self.beat(), grace_seconds=BEAT_GRACE_SECONDS)
                away = False
            except StoreUnavailableError:
                if not away:
                    log.warning("heartbeat.database_away")
                away = True
            await asyncio.sleep(self.interval_seconds)

    async def beat(self) -> None:
        """Beat once.

        Raises:
            StoreUnavailableError: the database does not answer.
        """
        beat = await self.workers.beat(self.executor.worker_id)
        self._beaten_at = asyncio.get_running_loop().time()
        if beat.draining and self._draining is None:
            log.warning("process.draining", count=len(self.executor.active))
            drain = self.executor.drain(self.drain_seconds)
            self._draining = asyncio.create_task(drain, name="drain")
        for key, cancel_request in beat.cancelled.items():
            self.executor.cancel(key, cancel_request)
        for key in self._strays.confirmed(self.executor.active - beat.owned):
            self.executor.lose(key)
        for key in self._orphans.confirmed(beat.owned - self.executor.active):
            await self._give_back(key)
        for key in self.executor.broken.keys() - beat.owned:
            del self.executor.broken[key]

    async def leave(self) -> None:
        """Record that this process ends; without the database others will notice."""
        try:
            await self.workers.leave(self.executor.worker_id)
        except StoreUnavailableError:
            log.warning("heartbeat.left_unsaid")

    async def _give_back(self, key: RunKey) -> None:
        run = await self.store.get(key)
        if run is None or run.worker_id != self.executor.worker_id or run.finished:
            return
        if key in self.executor.active:
            return
        log.warning("run.orphaned", tenant=key.tenant, run_id=key.run_id)
        begun = self.executor.broken.get(key) == run.fence
        await self.store.release(run, active_seconds=run.active_seconds, calls=(), counted=begun)


class _SeenFor:
    """Finds the runs that were seen in every beat for some time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: dict[RunKey, float] = {}

    def confirmed(self, seen: Set[RunKey]) -> list[RunKey]:
        """Remember what is seen now; return what has been for long enough, in order."""
        now = asyncio.get_running_loop().time()
        self._since = {key: self._since.get(key, now) for key in seen}
        return sorted(key for key, since in self._since.items() if now - since >= self._seconds)
