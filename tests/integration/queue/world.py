"""A process that claims queued runs, with an executor that only records them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from caseworker.runs.executor import RunSlots
from caseworker.runs.heartbeat import Loops
from caseworker.runs.queue.worker import CONCURRENCY, QueueTimes, QueueWorker
from caseworker.runs.run import Run, RunKey
from tests.support.limits import patience
from tests.support.stores import Stores

NEVER = 3600.0
QUIET = QueueTimes(poll=NEVER, heartbeat=NEVER, stale=NEVER)
"""Polling is off, so every claim comes from a notification."""


class NotingExecutor:
    """An executor that accepts runs while it has slots and never ends them."""

    def __init__(self, worker_id: str = "w1", *, slots: int = 1000) -> None:
        self._worker_id = worker_id
        self._slots = slots
        self._reserved = 0
        self._room = asyncio.Event()
        self._started = asyncio.Event()
        self.runs: dict[RunKey, Run] = {}
        self.slots = RunSlots(slots, self.runs.keys())

    @property
    def worker_id(self) -> str:
        return self._worker_id

    @property
    def free_slots(self) -> int:
        return self._slots - self._reserved - len(self.runs)

    def reserve(self) -> bool:
        if self.free_slots <= 0:
            return False
        self._reserved += 1
        return True

    def unreserve(self) -> None:
        self._reserved -= 1
        self._room.set()

    async def room(self) -> None:
        while self.free_slots <= 0:
            self._room.clear()
            await self._room.wait()

    async def freed(self) -> None:
        await asyncio.Event().wait()

    def start(self, run: Run, *, permitted_at: float) -> None:
        assert run.key not in self.runs
        self.runs[run.key] = run
        self._started.set()

    def end(self, key: RunKey) -> None:
        del self.runs[key]
        self._room.set()

    async def has(self, key: RunKey) -> Run:
        """Wait until a run is executed here.

        Raises:
            TimeoutError: The run was not claimed in time.
        """
        async with asyncio.timeout(150):
            while key not in self.runs:
                self._started.clear()
                await self._started.wait()
        return self.runs[key]


@asynccontextmanager
async def working(
    url: str, stores: Stores, executor: NotingExecutor, times: QueueTimes = QUIET
) -> AsyncIterator[QueueWorker]:
    """Claim queued runs in the background, as a process does."""
    worker = QueueWorker(
        url,
        store=stores.runs,
        executor=executor,
        times=times,
        patience=patience(),
        claiming=asyncio.Semaphore(CONCURRENCY),
    )
    loops = Loops()
    loops.keep("queue", worker.run)
    try:
        yield worker
    finally:
        await loops.stop()
