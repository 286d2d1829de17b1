"""How a process that executes runs says that it lives, and learns what it missed."""

import asyncio

import structlog

from app.engine.supervision import shielded
from app.runs.executor import RunExecutor
from app.runs.ports import RunStore, WorkerStore
from app.runs.run import RunKey

log = structlog.get_logger(__name__)

BEAT_GRACE_SECONDS = 5.0
"""How long a beat may still take when the process ends: its statements are not cut off."""


class Heartbeat:
    """Beats; with every beat re-reads which runs must stop, and which are this process's.

    A notification that was lost delays a stop by at most one beat. A run that the database gives to
    this process although it is executed nowhere (its acceptance was committed, but the answer of
    the commit was lost) is given back to the queue. A run that is executed here although the
    database gives it to nobody here is stopped: it goes on elsewhere. Both must have looked so for
    an interval, because a beat may see a run while it is being begun or ended.
    """

    def __init__(
        self,
        *,
        workers: WorkerStore,
        store: RunStore,
        executor: RunExecutor,
        interval_seconds: float,
    ) -> None:
        self._workers = workers
        self._store = store
        self._executor = executor
        self._interval_seconds = interval_seconds
        self._orphans = _Suspects(0.9 * interval_seconds)
        self._strays = _Suspects(0.9 * interval_seconds)

    async def run(self) -> None:
        """Beat for ever."""
        while True:
            await shielded(self.beat(), grace_seconds=BEAT_GRACE_SECONDS)
            await asyncio.sleep(self._interval_seconds)

    async def beat(self) -> None:
        """Beat once.

        Raises:
            StoreUnavailableError: the database does not answer.
        """
        beat = await self._workers.beat(self._executor.worker_id)
        for key, cancel_request in beat.stopped.items():
            self._executor.stop(key, cancel_request)
        for key in self._strays.confirmed(self._executor.active - beat.owned):
            self._executor.lose(key)
        for key in self._orphans.confirmed(beat.owned - self._executor.active):
            await self._give_back(key)

    async def leave(self) -> None:
        """Say that this process ends."""
        await self._workers.leave(self._executor.worker_id)

    async def _give_back(self, key: RunKey) -> None:
        run = await self._store.get(key)
        if run is None or run.worker_id != self._executor.worker_id or run.finished:
            return
        if key in self._executor.active:
            return
        log.warning("run.orphaned", tenant=key.tenant, run_id=key.run_id)
        await self._store.release(run, active_seconds=run.active_seconds, calls=(), counted=True)


class _Suspects:
    """Runs that have looked wrong in every beat for some time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: dict[RunKey, float] = {}

    def confirmed(self, looking_wrong: frozenset[RunKey]) -> list[RunKey]:
        """Remember what looks wrong now; return what has for long enough, in order."""
        now = asyncio.get_running_loop().time()
        self._since = {key: self._since.get(key, now) for key in looking_wrong}
        return sorted(key for key, since in self._since.items() if now - since >= self._seconds)
