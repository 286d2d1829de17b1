"""A process that claims queued runs, and executes them until a test ends them."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from caseworker.nodes.catalog import NodeCatalog
from caseworker.runs.execute.execution import ActiveRun
from caseworker.runs.execute.executor import RunExecutor
from caseworker.runs.execute.queue.worker import CONCURRENCY, QueueTimes, QueueWorker
from caseworker.runs.recover.heartbeat import Loops
from caseworker.runs.run import Run, RunKey
from tests.support.limits import executor_limits, patience
from tests.support.memory_runs import MemoryRuns
from tests.support.runs import executor_parts
from tests.support.stores import Stores

NEVER = 3600.0
QUIET = QueueTimes(poll=NEVER, heartbeat=NEVER, stale=NEVER)
"""Polling is off, so every claim comes from a notification."""


class HoldingExecutor(RunExecutor):
    """An executor whose runs last until a test ends them."""

    def __init__(self, worker_id: str = "w1", *, slots: int = 1000) -> None:
        limits = executor_limits(max_runs=slots)
        parts = executor_parts(MemoryRuns(), NodeCatalog([]), name=worker_id, limits=limits)
        super().__init__(**parts)
        self._started = asyncio.Event()
        self._ends: dict[RunKey, asyncio.Event] = defaultdict(asyncio.Event)

    async def _run(self, active: ActiveRun, permitted_at: float) -> None:
        self._started.set()
        await self._ends[active.run.key].wait()

    def let_end(self, key: RunKey) -> None:
        self._ends[key].set()

    async def has(self, key: RunKey) -> Run:
        """Wait until a run is executed here.

        Raises:
            TimeoutError: The run was not claimed in time.
        """
        async with asyncio.timeout(150):
            while key not in self.active:
                self._started.clear()
                await self._started.wait()
        return self._active[key].run


@asynccontextmanager
async def working(
    url: str, stores: Stores, executor: HoldingExecutor, times: QueueTimes = QUIET
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
