"""Does what the service owes beside runs, such as deliveries of webhooks, in jobs of the queue.

A job only wakes a process: what is due, and since when, stands in a row, which whoever does the
work claims. So a job that is lost, doubled or late does no harm; those that are lost are found by
:class:`JobRescue`.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass

import procrastinate
import structlog
from procrastinate.connector import BaseConnector
from procrastinate.jobs import Job, Status

from caseworker.adapters.postgres.connections import Patience
from caseworker.adapters.postgres.engines import Pool, transaction
from caseworker.adapters.postgres.workers import DELETE_STALLED_JOBS
from caseworker.adapters.queue.worker import (
    CapacityAwareJobManager,
    QueueTimes,
    connections,
    take_jobs,
    wake_when_told,
)
from caseworker.observability.store_errors import StoreUnavailableError

log = structlog.get_logger(__name__)

Task = Callable[..., Awaitable[None]]

CONNECTIONS = 2
"""At most: a job holds none while it works."""

GREED = 3
"""How many places a tenant may hold for each that is free: alone, three quarters of them.

It leaves room for those that come next (Choudhury and Hahne, Dynamic queue length thresholds for
shared-memory packet switches, 1998).
"""

_TAKE = """
WITH next AS (
    SELECT id FROM procrastinate_jobs
    WHERE status = 'todo' AND queue_name = ANY(%(queues)s::text[])
        AND (scheduled_at IS NULL OR scheduled_at <= now())
        AND queue_name || '/' || coalesce(args ->> 'tenant', '') <> ALL(%(full)s::text[])
    ORDER BY priority DESC, id LIMIT 1 FOR UPDATE SKIP LOCKED
)
UPDATE procrastinate_jobs AS job SET status = 'doing', worker_id = %(worker_id)s
FROM next WHERE job.id = next.id RETURNING job.*
"""
"""As the library takes a job, but not of everybody; these jobs have no locks."""

RESCUE_SECONDS = 5.0
"""How often lost jobs are looked for at most, and how late a job must be to count as lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundQueue:
    """The work of one queue."""

    tasks: Mapping[str, Task]
    """What is called, by the name in the job, with the job's arguments."""
    at_once: int
    """How many jobs of the queue are worked on at once: one that is slow delays no other queue."""


class SharedJobManager(CapacityAwareJobManager):
    """Gives a worker jobs of those queues that it does not work on enough yet.

    Jobs of a tenant that holds its share of a queue's places are passed over: others are next.
    """

    def __init__(self, connector: BaseConnector, queues: Mapping[str, BackgroundQueue]) -> None:
        super().__init__(connector, has_room=lambda: True)
        self._free = {name: queue.at_once for name, queue in queues.items()}
        self._held: Counter[tuple[str, str]] = Counter()

    async def next_job(self, queues: Iterable[str] | None, worker_id: int) -> Job | None:
        """Take the job that is next; None if there is none that may be done now."""
        free = [name for name, places in self._free.items() if places > 0]
        full = [
            f"{queue}/{tenant}"
            for (queue, tenant), held in self._held.items()
            if held >= GREED * self._free[queue]
        ]
        taken = await self.connector.execute_query_all_async(
            query=_TAKE, worker_id=worker_id, queues=free, full=full
        )
        if not taken:
            return None
        job = Job.from_row(taken[0])
        self._free[job.queue] -= 1
        self._held[_holder(job)] += 1
        return job

    async def finish_job(self, job: Job, status: Status, delete_job: bool) -> None:
        """Forget a job that has ended, and make room for another one."""
        try:
            await super().finish_job(job, status, delete_job)
        finally:
            self._free[job.queue] += 1
            self._held[_holder(job)] -= 1
            self._held += Counter()  # drops those that hold nothing
            await self.wake()


def _holder(job: Job) -> tuple[str, str]:
    return job.queue, str(job.task_kwargs.get("tenant", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundWorker:
    """Takes the jobs of some queues."""

    url: str
    queues: Mapping[str, BackgroundQueue]
    times: QueueTimes
    patience: Patience

    async def run(self) -> None:
        """Take jobs until the database goes away.

        Raises:
            Exception: the database went away; which one depends on who noticed it first.
        """
        app = procrastinate.App(connector=procrastinate.PsycopgConnector())
        jobs = SharedJobManager(app.connector, self.queues)
        app.job_manager = jobs
        for name, queue in self.queues.items():
            for task_name, task in queue.tasks.items():
                app.task(name=task_name, queue=name)(task)
        names, at_once = list(self.queues), sum(queue.at_once for queue in self.queues.values())
        async with connections(self.url, self.patience, at_most=CONNECTIONS) as pool:
            await pool.wait(self.patience.connect_seconds)
            async with app.open_async(pool), asyncio.TaskGroup() as tasks:
                told = wake_when_told(jobs, self.url, names, self.patience)
                listening = tasks.create_task(told)
                await take_jobs(app, names, at_once=at_once, times=self.times)
                listening.cancel()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRescue:
    """Gives a new job to what is due and has none, because its job or its process was lost."""

    pool: Pool
    rescues: Mapping[str, Callable[[], Awaitable[int]]]
    """What finds such work and defers jobs for it, by queue; returns how many there were."""
    interval_seconds: float
    stale_seconds: float
    """How long the worker of a job may be silent before the job is taken from it."""

    async def run(self) -> None:
        """Look again and again; a database that is away is tried again the next time."""
        while True:
            await asyncio.sleep(self.interval_seconds)
            try:
                await self._look()
            except StoreUnavailableError:
                continue

    async def _look(self) -> None:
        for queue, rescue in self.rescues.items():
            async with transaction(self.pool) as connection:
                stalled = (queue, self.stale_seconds)
                await connection.exec_driver_sql(DELETE_STALLED_JOBS, stalled)
            if count := await rescue():
                log.warning("jobs.rescued", queue=queue, count=count)
