"""The heartbeat of a process that executes runs, and its statement that looks for work.

The statement also reads the heartbeats of all workers. Features add expressions for their own work
(:class:`Search`), so that an idle process polls nothing else.

See docs/internals.md, "Recovery".
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Set
from contextlib import suppress
from dataclasses import dataclass, field

import structlog

from caseworker.engine.supervision import shielded
from caseworker.platform.errors import StoreUnavailableError
from caseworker.platform.logs.errors import message_of_error
from caseworker.runs.execute.executor import RunExecutor
from caseworker.runs.ports import RunStore, WorkerStore
from caseworker.runs.run import RunKey

_LOOK = """
SELECT
    (SELECT json_object_agg(worker_id, beat_at) FROM workers) AS beats,
    EXISTS (SELECT FROM runs WHERE status = 'waiting' AND queued_at <= now()) AS due,
    EXISTS (
        SELECT FROM runs
        WHERE deadline <= now() AND status = 'queued'
    ) OR EXISTS (
        SELECT FROM runs
        WHERE status = 'queued' AND cancel_requested_at IS NOT NULL AND started_at IS NOT NULL
    ) AS stopped,
    EXISTS (
        SELECT FROM deaths d WHERE suspect AND (
            SELECT status = 'queued' AND queued_at <= now() FROM runs r
            WHERE r.tenant_id = d.tenant_id AND r.run_id = d.run_id)
    ) AND (
        SELECT count(*) FROM deaths d WHERE suspect AND (
            SELECT status = 'running' FROM runs r
            WHERE r.tenant_id = d.tenant_id AND r.run_id = d.run_id)
    ) < 2 AS suspects,
    EXISTS (SELECT FROM runs WHERE status = 'running') AS running,
    EXISTS (SELECT FROM procrastinate_jobs WHERE status = 'doing') AS doing,
    (
        SELECT extract(epoch FROM queued_at - now())::float8 FROM runs
        WHERE status = 'queued' ORDER BY queued_at LIMIT 1
    ) AS run_seconds"""

_NEXT_JOB = """
    SELECT extract(epoch FROM min(job.at) - now())::float8
    FROM unnest(ARRAY[{queues}]::text[]) AS queue(name), LATERAL (
        (SELECT now() AS at FROM procrastinate_jobs
        WHERE status = 'todo' AND queue_name = queue.name AND scheduled_at IS NULL
        ORDER BY id LIMIT 1)
        UNION ALL
        (SELECT scheduled_at FROM procrastinate_jobs
        WHERE status = 'todo' AND queue_name = queue.name AND scheduled_at IS NOT NULL
        ORDER BY scheduled_at LIMIT 1)
    ) job
"""


@dataclass(frozen=True, slots=True)
class Search:
    """Looks for work of one kind, as a part of the statement."""

    seconds: str
    """SQL query for the seconds until work is due: at most zero if some is due now; null or no row
    if there is none. It has no parameters, and should read one row of an index: with ``now()`` it
    does, with ``clock_timestamp()`` it would read all rows."""
    due: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when work is due."""

    async def run_when_due(
        self, work: Callable[[], Awaitable[object]], pause_seconds: float = 0
    ) -> None:
        """Call ``work`` each time ``due`` is set, until cancelled.

        A database outage skips one call; the next search sets ``due`` again. Two calls are at least
        ``pause_seconds`` apart, for work that may stay due.
        """
        while True:
            await self.due.wait()
            self.due.clear()
            with suppress(StoreUnavailableError):
                await work()
            await asyncio.sleep(pause_seconds)


def look_statement(searches: Iterable[Search]) -> str:
    """Return the statement that reads the heartbeats of all workers, and which work there is.

    ``run_seconds`` are the seconds until the next queued run may start, and ``search_0`` and so on
    those of the searches. ``running`` and ``doing`` show whether a dead worker may have left runs
    or jobs. The few suspects are looked up one by one; a join might read all queued runs.

    The statement has no parameters, so the server plans it once for each connection.
    """
    columns = (f"({each.seconds}) AS search_{number}" for number, each in enumerate(searches))
    return ", ".join((_LOOK, *columns))


def next_job(queues: Iterable[str]) -> str:
    """Return a query for the seconds until the next job of ``queues`` may start."""
    return _NEXT_JOB.format(queues=", ".join(f"'{each}'" for each in queues))


log = structlog.get_logger(__name__)

BEAT_GRACE_SECONDS = 5.0
"""Seconds that a heartbeat may take during shutdown; SQL statements are not interrupted."""


@dataclass(slots=True, kw_only=True)
class Heartbeat:
    """Sends heartbeats, and compares the local runs with those that the database assigns.

    If a notification about a cancel request was lost, the next heartbeat delivers the request. If
    the database assigns a run to this process but the process does not execute it, the run is
    released to the queue. This happens if a claim was committed but its response was lost; the
    attempt counts only if the run crashed in this process. If this process executes a run that
    another worker owns, the execution is stopped. Either mismatch must persist for an interval
    before it is handled, because a heartbeat may see a run that is just starting or ending.
    """

    workers: WorkerStore
    store: RunStore
    executor: RunExecutor
    interval_seconds: float
    drain_seconds: float
    """Seconds that runs may continue after this process was asked to drain."""
    _draining: asyncio.Task[None] | None = None
    _is_leaving: bool = False
    _beaten_at: float = field(init=False)
    _orphans: "_SeenFor" = field(init=False)
    _strays: "_SeenFor" = field(init=False)

    def __post_init__(self) -> None:
        """Start with no earlier heartbeat to compare with."""
        self._beaten_at = asyncio.get_running_loop().time()
        self._orphans, self._strays = (_SeenFor(0.9 * self.interval_seconds) for _ in range(2))

    @property
    def silent_seconds(self) -> float:
        """Seconds since the last successful heartbeat."""
        return asyncio.get_running_loop().time() - self._beaten_at

    @property
    def draining(self) -> bool:
        """Whether an operator has asked this process to accept no more runs and to finish."""
        return self._draining is not None

    async def run(self) -> None:
        """Send heartbeats at intervals until cancelled; failures do not end the loop."""
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
        """Send one heartbeat, and compare the local runs with those in the database.

        Raises:
            StoreUnavailableError: the database does not answer.
        """
        beat = await self.workers.beat(self.executor.worker_id)
        self._beaten_at = asyncio.get_running_loop().time()
        if beat.draining and self.executor.accepts_runs:
            log.warning("process.draining", count=len(self.executor.active))
            drain = self.executor.drain(self.drain_seconds)
            self._draining = asyncio.create_task(drain, name="drain")
        for key, cancel_request in beat.cancelled.items():
            self.executor.cancel(key, cancel_request)
        for key in self._strays.confirmed(self.executor.active - beat.owned):
            self.executor.lose(key)
        for key in self._orphans.confirmed(beat.owned - self.executor.active):
            await self._release_run(key)
        for key in self.executor.broken.keys() - beat.owned:
            del self.executor.broken[key]

    async def stop_accepting(self) -> None:
        """Record once that this process accepts no more runs; if that fails, requests detect it."""
        if self._is_leaving:
            return
        self._is_leaving = True
        try:
            await self.workers.stop_accepting(self.executor.worker_id)
        except Exception as error:  # the runs must be released in any case
            log.warning("heartbeat.stop_unsaid", error=message_of_error(error))

    async def leave(self) -> None:
        """Record that this process shuts down. If that fails, missing heartbeats reveal it."""
        try:
            await self.workers.leave(self.executor.worker_id)
        except StoreUnavailableError:
            log.warning("heartbeat.left_unsaid")

    async def _release_run(self, key: RunKey) -> None:
        # Read again: the run may have started or ended since the heartbeat.
        run = await self.store.get(key)
        if run is None or run.worker_id != self.executor.worker_id or run.finished:
            return
        if key in self.executor.active:
            return
        log.warning("run.orphaned", tenant=key.tenant, run_id=key.run_id)
        has_started = self.executor.broken.get(key) == run.fence
        await self.store.release(
            run, active_seconds=run.active_seconds, calls=(), counted=has_started
        )


class _SeenFor:
    """Finds runs that were seen in every heartbeat for a given time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: dict[RunKey, float] = {}

    def confirmed(self, seen: Set[RunKey]) -> list[RunKey]:
        """Record the runs seen now; return those seen for long enough, sorted."""
        now = asyncio.get_running_loop().time()
        self._since = {key: self._since.get(key, now) for key in seen}
        return sorted(key for key, since in self._since.items() if now - since >= self._seconds)
