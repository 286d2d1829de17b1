"""How a process that executes runs says that it lives, and learns what it missed."""

import asyncio

import structlog

from app.engine.settling import settle
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
    the commit was lost) is given back to the queue when two beats in a row find it.
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
        self._suspects: frozenset[RunKey] = frozenset()

    async def run(self) -> None:
        """Beat for ever."""
        while True:
            await settle(self.beat(), grace_seconds=BEAT_GRACE_SECONDS)
            await asyncio.sleep(self._interval_seconds)

    async def beat(self) -> None:
        """Beat once.

        Raises:
            StoreUnavailableError: the database does not answer.
        """
        beat = await self._workers.beat(self._executor.worker_id)
        for key, wish in beat.stopped.items():
            self._executor.stop(key, wish)
        orphans = beat.owned - self._executor.active
        for key in sorted(orphans & self._suspects):
            await self._give_back(key)
        self._suspects = orphans

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
