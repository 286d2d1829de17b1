"""Takes queued runs for this process, one for each free slot, without missing a wake-up.

procrastinate's worker fetches a job, and if there is none it sleeps until a notification or its
next poll. When the fetch returns, it discards all notifications received so far. A job that is
committed after the query, and announced before the response arrives, would be missed until the next
poll. This module therefore counts every wake-up, and ignores an empty response if a wake-up came
during the query. Doing this in ``fetch_job`` is enough: no other code runs between its return and
the point where the worker discards the notifications.

See docs/internals.md, "Recovery".
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

import procrastinate
from procrastinate.connector import BaseConnector
from procrastinate.jobs import DeleteJobCondition, Job, JobInserted
from procrastinate.manager import JobManager, NotificationCallback, get_channel_for_queues
from psycopg_pool import AsyncConnectionPool

from caseworker.engine.supervision import forget_failure, until_done
from caseworker.platform.postgres.connections import Connection, Patience, connect_options
from caseworker.runs.execute.executor import RunExecutor
from caseworker.runs.ports import RunStore
from caseworker.runs.postgres.listener import listen
from caseworker.runs.postgres.queue_jobs import EXECUTE, QUEUE
from caseworker.runs.run import Run

CONCURRENCY = 4
"""Number of concurrent jobs. A job only claims its run; the run then executes outside the job."""


def claims_at_once(max_runs: int) -> int:
    """Return the number of concurrent claims; 1 if more might exceed a tenant's share of slots."""
    return CONCURRENCY if max_runs >= 20 * CONCURRENCY else 1


_DUE = """
    SELECT id FROM procrastinate_jobs
    WHERE status = 'todo' AND queue_name = queue.name AND scheduled_at {at}
        AND queue_name || '/' || coalesce(args ->> 'tenant', '') <> ALL(%(full)s::text[])
    ORDER BY {order} LIMIT 32
"""

_TAKE = f"""
WITH next AS (
    SELECT id FROM procrastinate_jobs WHERE status = 'todo' AND id = ANY(ARRAY(
        SELECT job.id FROM unnest(%(queues)s::text[]) AS queue(name), LATERAL (
            ({_DUE.format(at="IS NULL", order="id")})
            UNION ALL
            ({_DUE.format(at="<= now()", order="scheduled_at")})
        ) job
    )) ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED
)
UPDATE procrastinate_jobs AS job SET status = 'doing', worker_id = %(worker_id)s
FROM next WHERE job.id = next.id RETURNING job.*
"""  # noqa: S608 - nothing of a caller's is in it
"""Take a job that is due, except those of some tenants.

procrastinate's own statement also considers locks and priorities, which these jobs do not have. It
reads all jobs that start later.
"""

STOP_GRACE_SECONDS = 5.0
"""Seconds that stopping a worker may take: its jobs get one second, then it unregisters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTimes:
    """A worker's poll interval, and the time after which other workers are considered dead."""

    poll: float
    """Poll interval in seconds. Notifications wake the worker at once; recovery wakes it if a
    notification was lost."""
    heartbeat: float
    stale: float
    """Seconds without a heartbeat after which another worker is treated as dead."""


class CapacityAwareJobManager(JobManager):
    """Gives a worker jobs only while slots are free, and can be woken from outside."""

    def __init__(
        self,
        connector: BaseConnector,
        *,
        has_free_slots: Callable[[], bool],
        looked: asyncio.Event | None = None,
    ) -> None:
        """Give no jobs while ``has_free_slots`` returns False; :meth:`wake` checks it again.

        ``looked`` is set after the first search for a job, which means that the worker is ready.
        """
        super().__init__(connector)
        self._has_free_slots = has_free_slots
        self._notify_worker: NotificationCallback | None = None
        self._wakes = 0
        self.refused = asyncio.Event()
        """Set when a job was not fetched because no slot was free, so that one may be waiting."""
        self._looked = looked or asyncio.Event()

    async def register_worker(self) -> int:
        """Register the worker. If this is cancelled, unregister it before raising."""
        registering = asyncio.create_task(super().register_worker(), name="register worker")
        try:
            return await asyncio.shield(registering)
        except asyncio.CancelledError:
            # The row may be stored although its ID has not arrived yet.
            await self.unregister_worker(await registering)
            raise

    async def fetch_job(self, queues: Iterable[str] | None, worker_id: int) -> Job | None:
        """Return the next job, or None if there is no job or no free slot."""
        while True:
            if not self._has_free_slots():
                self.refused.set()
                self._looked.set()
                return None
            wakes = self._wakes
            job = await self.next_job(queues, worker_id)
            self._looked.set()
            if job is not None or wakes == self._wakes:
                return job

    async def next_job(self, queues: Iterable[str] | None, worker_id: int) -> Job | None:
        """Return the next job, or None if there is none."""
        return await self.take(worker_id, queues=list(queues or ()))

    async def take(
        self, worker_id: int, *, queues: Sequence[str], full: Sequence[str] = ()
    ) -> Job | None:
        """Take a job from ``queues`` that may start now; return None if there is none.

        ``full`` has a queue and a tenant, separated by a slash, for each tenant whose jobs of that
        queue are left.
        """
        rows = await self.connector.execute_query_all_async(
            query=_TAKE, worker_id=worker_id, queues=queues, full=list(full)
        )
        return Job.from_row(rows[0]) if rows else None

    async def listen_for_jobs(
        self, *, on_notification: NotificationCallback, queues: Iterable[str] | None = None
    ) -> None:
        """Store the callback that wakes the worker; notifications are received by QueueWorker."""
        self._notify_worker = on_notification
        await self.wake()
        await asyncio.Event().wait()

    async def wake(self) -> None:
        """Make the worker search for jobs now."""
        self._wakes += 1
        if self._notify_worker is not None:
            await self._notify_worker(
                channel="", notification=JobInserted(type="job_inserted", job_id=0)
            )


@dataclass(frozen=True, slots=True)
class QueueWorker:
    """The worker of this process that takes queued runs."""

    url: str
    store: RunStore
    executor: RunExecutor
    times: QueueTimes
    patience: Patience
    claiming: asyncio.Semaphore
    """Semaphore that limits concurrent claims; see :func:`claims_at_once`."""
    due: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a queued run may start although its notification, or its job, may be lost."""
    looked: asyncio.Event = field(default_factory=asyncio.Event)
    """Event that is set after the first search for a job, when the worker is ready."""

    async def run(self) -> None:
        """Take jobs until the database connection is lost.

        Raises:
            Exception: the connection was lost; the type depends on which part noticed it first.
        """
        app = procrastinate.App(connector=procrastinate.PsycopgConnector())
        jobs = CapacityAwareJobManager(
            app.connector,
            has_free_slots=lambda: self.executor.free_slots > 0,
            looked=self.looked,
        )
        app.job_manager = jobs
        self.due.set()  # a lost connection may have taken jobs without claiming their runs
        app.task(name=EXECUTE, queue=QUEUE)(self._execute)
        async with connections(self.url, self.patience, at_most=CONCURRENCY) as pool:
            await pool.wait(self.patience.connect_seconds)
            async with app.open_async(pool), asyncio.TaskGroup() as tasks:
                listening = wake_on_notification(jobs, self.url, [QUEUE], self.patience)
                due = wake_when_due(jobs, self.due, self._claim_next_runs)
                beside = (listening, due, self._wake_when_free(jobs), self._claim_when_freed())
                helpers = [tasks.create_task(each) for each in beside]
                await take_jobs(app, [QUEUE], at_once=CONCURRENCY, times=self.times)
                for helper in helpers:
                    helper.cancel()

    async def _wake_when_free(self, jobs: CapacityAwareJobManager) -> None:
        while True:
            await jobs.refused.wait()
            jobs.refused.clear()
            await self.executor.wait_for_slot()
            await jobs.wake()

    async def _claim_when_freed(self) -> None:
        """Claim runs that had to wait for other runs of their tenant: their jobs are gone."""
        while True:
            await self.executor.freed()
            await self._claim_next_runs()

    async def _claim_next_runs(self) -> None:
        while self.executor.free_slots > 0 and await self._claim_next():
            pass

    async def _execute(self, tenant: str, run_id: str) -> None:
        """Start the next run: a job signals that a run is queued, not which one."""
        while self.executor.free_slots <= 0:
            await self.executor.wait_for_slot()
        try:
            await self._claim_next()
        except BaseException:
            self.due.set()  # the job ends now, so nothing else would claim the run soon
            raise

    async def _claim_next(self) -> bool:
        """Claim and start the next run; return False if there is none, or no free slot."""
        if not self.executor.reserve():
            return False
        try:
            async with self.claiming:
                permitted_at = time.monotonic()
                run = await self._claimed()
                if run is not None:
                    self.executor.start(run, permitted_at=permitted_at)
        finally:
            self.executor.unreserve()
        return run is not None

    async def _claimed(self) -> Run | None:
        """Claim the next run of a tenant that holds less than its share of the slots."""
        claim, worker_id = self.store.claim, self.executor.worker_id
        slots = self.executor.slots
        full, served = slots.full_tenants, slots.served_last
        run = await claim(None, worker_id, excluding=[*full, *served]) if served else None
        return run or await claim(None, worker_id, excluding=full)


async def take_jobs(
    app: procrastinate.App, queues: Sequence[str], *, at_once: int, times: QueueTimes
) -> None:
    """Take jobs from ``queues`` until the connection is lost or this task is cancelled.

    However often this task is cancelled, the worker is cancelled only once and gets
    ``STOP_GRACE_SECONDS`` to stop, because a second cancellation would keep it from unregistering.
    """
    worker = app.run_worker_async(
        queues=queues,
        concurrency=at_once,
        fetch_job_polling_interval=times.poll,
        abort_job_polling_interval=times.poll,
        update_heartbeat_interval=times.heartbeat,
        stalled_worker_timeout=times.stale,
        shutdown_graceful_timeout=1.0,
        delete_jobs=DeleteJobCondition.ALWAYS,
        install_signal_handlers=False,
    )
    working = asyncio.create_task(worker, name="worker of the queue")
    try:
        await asyncio.shield(working)
    except asyncio.CancelledError:
        working.add_done_callback(forget_failure)
        working.cancel()
        await until_done((working,), STOP_GRACE_SECONDS)
        working.cancel()
        raise


async def wake_on_notification(
    jobs: CapacityAwareJobManager, url: str, queues: Iterable[str], patience: Patience
) -> None:
    """Wake a worker whenever a new job is announced in one of ``queues``."""

    async def wake(_: object) -> None:
        await jobs.wake()

    channels = get_channel_for_queues(queues)
    await listen(url, channels, patience=patience, on_notification=wake, listening=jobs.wake)


async def wake_when_due(
    jobs: CapacityAwareJobManager,
    due: asyncio.Event,
    also: Callable[[], Awaitable[None]] | None = None,
) -> None:
    """Wake a worker, and call ``also``, whenever ``due`` is set."""
    while True:
        await due.wait()
        due.clear()
        await jobs.wake()
        if also is not None:
            await also()


def connections(url: str, patience: Patience, *, at_most: int) -> "AsyncConnectionPool[Connection]":
    """Return a connection pool for a worker; the caller opens it.

    Each statement of the worker is a separate transaction, and takes one round trip.
    """

    async def without_transactions(connection: Connection) -> None:
        await connection.set_autocommit(True)

    return AsyncConnectionPool(
        connection_class=Connection,
        kwargs=connect_options(url, patience),
        min_size=1,
        max_size=at_most,
        timeout=patience.connect_seconds,
        configure=without_transactions,
        check=Connection.check,
        open=False,
    )
