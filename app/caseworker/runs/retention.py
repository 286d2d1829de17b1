"""How long what runs and threads have stored is kept, and who clears the rest away.

By default everything is kept for ever. One process at a time sweeps, in small batches with pauses
as long as the batches, so that a busy database stays the callers'.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Protocol

import structlog

from caseworker.observability.store_errors import StoreUnavailableError
from caseworker.runs.quotas import QuotaStore

log = structlog.get_logger(__name__)

LEAST_PAUSE_SECONDS = 0.05
"""Between two batches."""

LOOKS_A_SWEEP = 10
"""How often each process asks whether it is to sweep, in the time between two sweeps."""


class Record(StrEnum):
    """What can be kept for a time of its own, counted from the end of its run."""

    RUNS = "runs"
    """Runs with everything that they stored."""
    REQUESTS = "requests"
    """What the calls of runs asked: prompts and arguments."""
    EVENTS = "events"
    SNAPSHOTS = "snapshots"
    """The stored traces of runs; they are rebuilt from their calls."""
    ARTIFACTS = "artifacts"
    THREADS = "threads"
    """Threads with their messages, counted from the last one; their runs are runs."""


Days = Mapping[Record, int | None]
"""How many days each record is kept; None is for ever."""


class RetentionStore(Protocol):
    """Knows what is due, and clears it away. Every method is one transaction."""

    async def begin_sweep(self, interval_seconds: float) -> bool:
        """Claim the sweep that is due for this process; False if none is."""
        ...

    async def days_by_tenant(self, usual: Days) -> Mapping[str, Days]:
        """Return how long each tenant keeps what; tenants that keep everything may be left out."""
        ...

    async def drop(self, tenant: str, record: Record, *, days: int) -> bool:
        """Clear away a batch of what ended longer ago; True if there may be more.

        Raises:
            StoreUnavailableError: the database is away, or too busy for a batch.
        """
        ...

    async def drop_pending_cancels(self) -> bool:
        """Clear away a batch of pending cancels that have expired; True if there may be more."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Sweeps when a sweep is due."""

    store: RetentionStore
    quotas: QuotaStore
    days: Days
    """For tenants without days of their own."""
    unlimited: Sequence[str]
    """The records that grow for ever unless callers delete them."""
    sweep_seconds: float
    """Between two sweeps, of all processes together."""

    async def run(self) -> None:
        """Sweep for ever; a database that is away is swept the next time.

        What needs an operator is logged when the process starts, and with each of its sweeps.
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
        """Clear away everything that need not be kept.

        Raises:
            StoreUnavailableError: the database is away, or too busy.
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
    """Drop batches until there are no more, resting after each for as long as it took."""
    clock = asyncio.get_running_loop().time
    more = True
    while more:
        began = clock()
        more = await drop()
        if more:
            await asyncio.sleep(max(LEAST_PAUSE_SECONDS, clock() - began))
