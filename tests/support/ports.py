"""An implementation of the ports of ``caseworker.runs``."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import pytest

from caseworker.runs.execute.postgres.runs import StoreLimits
from caseworker.runs.ports import (
    JournalStore,
    RunStore,
    WorkerStore,
)
from caseworker.runs.run import Run, RunKey
from tests.support.limits import store_limits
from tests.support.memory_runs import MemoryRuns
from tests.support.stores import (
    new_run,
)

KEY = RunKey("default", "case-1")


@dataclass(frozen=True)
class Ports:
    """One implementation of all three ports."""

    runs: RunStore
    journal: JournalStore
    workers: WorkerStore
    lose: Callable[[], Awaitable[None]]
    """Queue the runs of workers that never sent a heartbeat, without a back-off."""

    async def claimed(self, run_id: str = "case-1", worker_id: str = "w1") -> Run:
        return (await self.runs.accept(new_run(run_id), worker_id=worker_id)).run

    async def queued(self, run_id: str = "case-1") -> Run:
        return (await self.runs.accept(new_run(run_id), worker_id=None)).run

    async def stored(self, key: RunKey = KEY) -> Run:
        run = await self.runs.get(key)
        assert run is not None
        return run


on_postgres = pytest.mark.parametrize("opened", ["postgres"], indirect=True)
"""Marks tests of features that only the real stores implement."""

Open = Callable[..., AbstractAsyncContextManager[Ports]]
NO_LIMITS = store_limits()


@asynccontextmanager
async def in_memory(limits: StoreLimits = NO_LIMITS) -> AsyncIterator[Ports]:
    store = MemoryRuns(
        pending_cancel_ttl_seconds=limits.pending_cancel_ttl_seconds,
        max_pending_cancels=limits.max_pending_cancels,
        max_queued=limits.max_queued,
    )

    async def lose() -> None:
        for worker_id in {run.worker_id for row in store.rows.values() if (run := row.run)}:
            if worker_id is not None:
                store.lose(worker_id)

    yield Ports(store, store, store, lose)
