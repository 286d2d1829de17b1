"""Process metrics for /metrics: slots, connections, the event loop, and the queue."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib.metadata import version
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Gauge,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

from caseworker.platform.errors import StoreUnavailableError
from caseworker.platform.postgres.engines import Engines, transaction
from caseworker.runs.execute.executor import RunExecutor
from caseworker.runs.quotas import STORED, NearlyFull

LOOK_SECONDS: Final = 0.5
"""Interval in seconds at which the event-loop lag is measured."""

KEPT_SECONDS: Final = 5.0
"""Seconds for which values from the database are cached."""

WAIT_SECONDS: Final = 2.0
"""Timeout, in seconds, for reading values from the database."""

UNENDED: Final = """
SELECT status, count(*), coalesce(extract(epoch FROM clock_timestamp() - min(queued_at)), 0)::float8
FROM runs WHERE status = 'queued' GROUP BY status
UNION ALL SELECT 'running', count(*), 0 FROM runs WHERE status IN ('running')
UNION ALL SELECT 'waiting', count(*), 0 FROM runs WHERE status = 'waiting'
"""
"""SQL that counts the unfinished runs of all processes. Each subquery uses a partial index on
unfinished runs."""

_LAG_SECONDS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)


class MetricsPage:
    """Generates the /metrics response: this process's counters and its current state."""

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        engines: Engines,
        executor: RunExecutor | None,
        silent_seconds: Callable[[], float],
        nearly_full: Callable[[], Awaitable[Sequence[NearlyFull]]],
        unlimited: Sequence[str],
    ) -> None:
        """Declare the metrics in ``registry``; without an ``executor``, no runs execute here."""
        self._registry = registry
        self._engines = engines
        self._executor = executor
        self._silent_seconds = silent_seconds
        self._nearly_full = nearly_full
        self._asked_at = -KEPT_SECONDS
        self._asking = asyncio.Lock()

        def gauge(name: str, says: str, *labels: str) -> Gauge:
            return Gauge(f"caseworker_{name}", says, labels, registry=registry)

        info = gauge("build_info", "Version of the service; the value is always 1.", "version")
        info.labels(version("caseworker")).set(1)
        self._active = gauge("active_runs", "Runs that this process is executing.")
        self._free = gauge("free_run_slots", "Free run slots of this process.")
        self._silent = gauge("heartbeat_age_seconds", "Time since the last successful heartbeat.")
        self._in_use = gauge("database_connections_in_use", "Database connections in use.", "pool")
        self._size = gauge(
            "database_connections_max", "Maximum number of database connections.", "pool"
        )
        self._up = gauge("database_up", "1 if the database responded to this request, else 0.")
        self._unended = gauge(
            "unended_runs", "Runs in the database, across all processes.", "status"
        )
        self._age = gauge("queue_age_seconds", "Age of the oldest queued run that is due.")
        about = "Tenants that have used at least 80 % of their storage quota."
        self._full = gauge("tenants_nearly_full", about, "dimension")
        growing = gauge(
            "retention_unlimited", "1 for each kind of record without a retention limit.", "record"
        )
        for record in unlimited:
            growing.labels(record).set(1)
        self._lag = Histogram(
            "caseworker_event_loop_lag_seconds",
            "Event loop lag, measured periodically.",
            registry=registry,
            buckets=_LAG_SECONDS,
        )
        for collector in (ProcessCollector, PlatformCollector, GCCollector):
            collector(registry=registry)

    async def text(self) -> bytes:
        """Return the current metrics in the Prometheus text format."""
        await self.refresh()
        return await asyncio.to_thread(generate_latest, self._registry)

    async def refresh(self) -> None:
        """Update all gauges; counters need no update."""
        executor = self._executor
        self._active.set(0 if executor is None else len(executor.active))
        self._free.set(0 if executor is None else max(0, executor.free_slots))
        self._silent.set(self._silent_seconds())
        for name in ("work", "control", "pulse"):
            pool = getattr(self._engines, name)
            self._in_use.labels(name).set(pool.in_use)
            self._size.labels(name).set(pool.size)
        async with self._asking:
            if time.monotonic() - self._asked_at >= KEPT_SECONDS:
                await self._ask()
                self._asked_at = time.monotonic()

    async def watch_loop(self) -> None:
        """Measure the event-loop lag at intervals until cancelled."""
        clock = asyncio.get_running_loop().time
        while True:
            due = clock() + LOOK_SECONDS
            await asyncio.sleep(LOOK_SECONDS)
            self._lag.observe(max(0.0, clock() - due))

    async def _ask(self) -> None:
        """Read the database figures; while the database does not respond they are absent."""
        counts: Mapping[str, tuple[int, float]] = {}
        try:
            async with (
                asyncio.timeout(WAIT_SECONDS),
                transaction(self._engines.control) as connection,
            ):
                rows = (await connection.exec_driver_sql(UNENDED)).all()
                counts = {
                    "queued": (0, 0.0),
                    **{status: (count, age) for status, count, age in map(tuple, rows)},
                }
                full = [each.dimension for each in await self._nearly_full()]
                for name in STORED:
                    self._full.labels(name).set(full.count(name))
        except (StoreUnavailableError, TimeoutError):
            self._unended.clear()
            self._full.clear()
        self._up.set(1 if counts else 0)
        for status, (count, _) in counts.items():
            self._unended.labels(status).set(count)
        self._age.set(max(0.0, counts["queued"][1]) if counts else float("nan"))
