"""Retention: how long the data of runs and threads is kept, and its deletion.

By default everything is kept forever. One process at a time deletes expired data (a sweep), in
small batches. After each batch it pauses for as long as the batch took, to leave database capacity
to callers.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

import structlog

from caseworker.features.quotas.usage import NearlyFull
from caseworker.features.retention.postgres import Days, PostgresRetention
from caseworker.platform.errors import StoreUnavailableError

log = structlog.get_logger(__name__)

MIN_PAUSE_SECONDS = 0.05
"""Minimum pause, in seconds, between two batches."""

LOOKS_A_SWEEP = 10
"""Number of times per sweep interval that each process checks whether a sweep is due."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Deletes expired data periodically."""

    store: PostgresRetention
    nearly_full: Callable[[], Awaitable[Sequence[NearlyFull]]]
    """Returns the storage limits that tenants have nearly reached."""
    days: Days
    """Default retention periods."""
    unlimited: Sequence[str]
    """Categories of data without a limit: their size grows unless callers delete data."""
    sweep_seconds: float
    """Interval in seconds between two sweeps, for all processes together."""

    async def run(self) -> None:
        """Sweep periodically; if the database is unavailable, try again at the next check.

        Categories without a limit are logged at the start of the process and with each of its
        sweeps.
        """
        self._warn_of_growth()
        while True:
            try:
                if await self.store.claim_sweep_and_merge_counters(self.sweep_seconds):
                    self._warn_of_growth()
                    await self.sweep()
            except StoreUnavailableError:
                log.warning("retention.database_away")
            await asyncio.sleep(self.sweep_seconds / LOOKS_A_SWEEP)

    async def sweep(self) -> None:
        """Delete all expired data, and log which storage limits are nearly reached.

        Raises:
            StoreUnavailableError: the database is unavailable or too busy.
        """
        await _in_batches(self.store.drop_pending_cancels)
        for tenant, name, used, limit in await self.nearly_full():
            log.warning("quota.nearly_full", tenant=tenant, dimension=name, used=used, limit=limit)
        for tenant, days_of_records in (await self.store.days_by_tenant(self.days)).items():
            for record, days in days_of_records.items():
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
            await asyncio.sleep(max(MIN_PAUSE_SECONDS, clock() - began))
