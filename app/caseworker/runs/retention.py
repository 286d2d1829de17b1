"""Retention: how long data of runs and threads is kept, and its deletion.

By default everything is kept forever. One process at a time sweeps, in small batches. It pauses as
long as each batch took, to leave database capacity to callers.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Protocol

import structlog

from caseworker.platform.errors import StoreUnavailableError
from caseworker.runs.quotas import QuotaStore

log = structlog.get_logger(__name__)

LEAST_PAUSE_SECONDS = 0.05
"""Minimum pause between two batches."""

LOOKS_A_SWEEP = 10
"""How often each process checks for a due sweep, per sweep interval."""


class Record(StrEnum):
    """A category of data with its own retention time, counted from the end of its run."""

    RUNS = "runs"
    """Runs with all their data."""
    REQUESTS = "requests"
    """Requests of calls: prompts and arguments."""
    EVENTS = "events"
    SNAPSHOTS = "snapshots"
    """Stored traces of runs; they can be rebuilt from the calls."""
    ARTIFACTS = "artifacts"
    THREADS = "threads"
    """Threads with their messages, counted from the last message; their runs count as runs."""


Days = Mapping[Record, int | None]
"""Retention time of each category in days; None keeps it forever."""


class RetentionStore(Protocol):
    """Finds and deletes expired data. Every method is one transaction."""

    async def begin_sweep(self, interval_seconds: float) -> bool:
        """Claim the due sweep for this process; return False if none is due."""
        ...

    async def days_by_tenant(self, usual: Days) -> Mapping[str, Days]:
        """Return the retention times of each tenant; those that keep everything may be omitted."""
        ...

    async def drop(self, tenant: str, record: Record, *, days: int) -> bool:
        """Delete a batch of data that ended more than ``days`` ago; return True if more may exist.

        Raises:
            StoreUnavailableError: the database is unavailable or too busy.
        """
        ...

    async def drop_pending_cancels(self) -> bool:
        """Delete a batch of expired pending cancels; return True if more may exist."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Runs the periodic sweeps."""

    store: RetentionStore
    quotas: QuotaStore
    days: Days
    """Default retention times."""
    unlimited: Sequence[str]
    """Categories that grow without limit unless callers delete data."""
    sweep_seconds: float
    """Interval between two sweeps across all processes."""

    async def run(self) -> None:
        """Sweep periodically; if the database is unavailable, retry at the next check.

        Unlimited categories are logged at the start of the process and with each of its sweeps.
        """
        self._warn_of_growth()
        while True:
            try:
                if await self.store.begin_sweep(self.sweep_seconds):
                    self._warn_of_growth()
                    await self.sweep()
            except StoreUnavailableError:
                log.warning("retention.database_away")
            await asyncio.sleep(self.sweep_seconds / LOOKS_A_SWEEP)

    async def sweep(self) -> None:
        """Delete all expired data; log storage limits that are nearly reached.

        Raises:
            StoreUnavailableError: the database is unavailable or too busy.
        """
        await _in_batches(self.store.drop_pending_cancels)
        for tenant, name, used, limit in await self.quotas.nearly_full():
            log.warning("quota.nearly_full", tenant=tenant, dimension=name, used=used, limit=limit)
        for tenant, kept in (await self.store.days_by_tenant(self.days)).items():
            for record, days in kept.items():
                if days is not None:
                    await _in_batches(partial(self.store.drop, tenant, record, days=days))

    def _warn_of_growth(self) -> None:
        if self.unlimited:
            log.warning("storage.unlimited", records=self.unlimited)


async def _in_batches(drop: Callable[[], Awaitable[bool]]) -> None:
    """Delete batches until none are left, pausing after each for as long as it took."""
    clock = asyncio.get_running_loop().time
    more = True
    while more:
        began = clock()
        more = await drop()
        if more:
            await asyncio.sleep(max(LEAST_PAUSE_SECONDS, clock() - began))
