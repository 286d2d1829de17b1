"""Does what the service owes beside runs, such as deliveries of webhooks, in jobs of the queue.

A job only wakes a process: what is due, and since when, stands in a row, which whoever does the
work claims. So a job that is lost, doubled or late does no harm; those that are lost are found by
:class:`JobRescue`.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import procrastinate
import structlog
from procrastinate.connector import BaseConnector
from procrastinate.exceptions import UniqueViolation
from procrastinate.jobs import Job, Status

from app.adapters.postgres.connections import Patience
from app.adapters.postgres.engines import Pool, transaction
from app.adapters.postgres.workers import DELETE_STALLED_JOBS
from app.adapters.queue.shares import Shares
from app.adapters.queue.worker import (
    CapacityAwareJobManager,
    QueueTimes,
    connections,
    take_jobs,
    wake_when_told,
)
from app.runs.errors import StoreUnavailableError

log = structlog.get_logger(__name__)

Task = Callable[..., Awaitable[None]]

CONNECTIONS = 2
"""At most: a job holds none while it works."""

PUT_BACK_AT_MOST = 100
"""Jobs in a row; the end of any job, and a poll, has the worker look on."""

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

    A job whose tenant holds its share of the queue's places is put back until the tenant's turn.
    """

    def __init__(self, connector: BaseConnector, queues: Mapping[str, BackgroundQueue]) -> None:
        super().__init__(connector, has_room=lambda: True)
        self._shares = {name: Shares(queue.at_once) for name, queue in queues.items()}

    async def fetch_job(self, queues: Iterable[str] | None, worker_id: int) -> Job | None:
        """Return a job to do now, if there is one that has not to wait for others of its tenant."""
        for _ in range(PUT_BACK_AT_MOST):
            free = [name for name, shares in self._shares.items() if shares.free > 0]
            job = await super().fetch_job(free, worker_id) if free else None
            if job is None or job.id is None:
                return None
            tenant = str(job.task_kwargs.get("tenant"))
            wait_seconds = self._shares[job.queue].take(job.id, tenant)
            if not wait_seconds:
                return job
            await self._put_back(job, wait_seconds)
        return None

    async def _put_back(self, job: Job, wait_seconds: float) -> None:
        try:
            await self.retry_job(job, retry_at=datetime.now(UTC) + timedelta(seconds=wait_seconds))
        except UniqueViolation:  # there is another job for the same work by now
            await super().finish_job(job, Status.SUCCEEDED, delete_job=True)

    async def finish_job(self, job: Job, status: Status, delete_job: bool) -> None:
        """Forget a job that has ended, and make room for another one."""
        try:
            await super().finish_job(job, status, delete_job)
        finally:
            if job.id is not None:
                self._shares[job.queue].give_back(job.id)
            await self.wake()


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
