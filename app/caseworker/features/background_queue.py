"""Executes the background work of the service, such as webhook deliveries, as queue jobs.

A job only wakes a process. The work and the time at which it is due are stored in a table row, and
a worker claims that row. A job that is lost, duplicated or late is therefore harmless.
:func:`rescue_jobs` replaces lost jobs.

See docs/internals.md, "Recovery".
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import procrastinate
import structlog
from procrastinate.connector import BaseConnector
from procrastinate.jobs import Job, Status

from caseworker.platform.fair_slots import TENANT
from caseworker.platform.postgres.connections import Patience
from caseworker.runs.execute.queue import (
    CapacityAwareJobManager,
    QueueTimes,
    connections,
    take_jobs,
    wake_on_notification,
    wake_when_due,
)
from caseworker.runs.recover.heartbeat import Search

log = structlog.get_logger(__name__)

Task = Callable[..., Awaitable[None]]

CONNECTIONS = 2
"""Maximum number of database connections of a worker; a job holds none while it executes."""

GREED = 3
"""Maximum ratio of the slots that a tenant holds to the slots that are free.

A single tenant gets three quarters of all slots. The rest stays free for tenants that arrive later
(Choudhury and Hahne, Dynamic queue length thresholds for shared-memory packet switches, 1998).
"""

RESCUE_SECONDS = 5.0
"""Minimum interval, in seconds, between two rescues of lost jobs. A job that is late by more than
this is treated as lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundQueue:
    """A queue of background jobs: its task handlers and its limit on concurrent jobs."""

    tasks: Mapping[str, Task]
    """Handlers by task name; each is called with the arguments of a job."""
    at_once: int
    """Maximum number of concurrent jobs from this queue, so that slow jobs do not delay other
    queues."""
    next_due: str
    """SQL query for the seconds until the first work is due, as in a search."""
    rescue: Callable[[float], Awaitable[int]]
    """Queues a job for each piece of work that is overdue by the given seconds, because its job or
    its process was lost; returns their number."""


class SharedJobManager(CapacityAwareJobManager):
    """Gives a worker jobs only from queues that have free slots.

    The jobs of a tenant that holds its full share of a queue's slots are skipped, so that other
    tenants get slots.
    """

    def __init__(self, connector: BaseConnector, queues: Mapping[str, BackgroundQueue]) -> None:
        super().__init__(connector, has_free_slots=lambda: True)
        self._free = {name: queue.at_once for name, queue in queues.items()}
        self._jobs_by_holder: Counter[tuple[str, str]] = Counter()

    async def next_job(self, queues: Iterable[str] | None, worker_id: int) -> Job | None:
        """Return the next job; None if no job may start now."""
        free = [name for name, places in self._free.items() if places > 0]
        full = [
            f"{queue}/{tenant}"
            for (queue, tenant), count in self._jobs_by_holder.items()
            if count >= GREED * self._free[queue]
        ]
        job = await self.take(worker_id, queues=free, full=full)
        if job is None:
            return None
        self._free[job.queue] -= 1
        self._jobs_by_holder[_holder(job)] += 1
        return job

    async def finish_job(self, job: Job, status: Status, delete_job: bool) -> None:
        """Mark a job as finished and release its slot."""
        try:
            await super().finish_job(job, status, delete_job)
        finally:
            self._free[job.queue] += 1
            self._jobs_by_holder[_holder(job)] -= 1
            self._jobs_by_holder += Counter()  # removes zero counts
            await self.wake()


def _for_tenant(task: Task) -> Task:
    async def execute(tenant: str, **arguments: Any) -> None:
        TENANT.set(tenant)
        await task(tenant=tenant, **arguments)

    return execute


def _holder(job: Job) -> tuple[str, str]:
    return job.queue, str(job.task_kwargs.get("tenant", ""))


@dataclass(frozen=True, slots=True, kw_only=True)
class BackgroundWorker:
    """The worker of this process that executes the jobs of background queues."""

    url: str
    queues: Mapping[str, BackgroundQueue]
    times: QueueTimes
    patience: Patience
    due: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a job may start although its notification may be lost."""

    async def run(self) -> None:
        """Execute jobs until the database connection is lost.

        Raises:
            Exception: the connection was lost; the type depends on which part noticed it first.
        """
        app = procrastinate.App(connector=procrastinate.PsycopgConnector())
        jobs = SharedJobManager(app.connector, self.queues)
        app.job_manager = jobs
        for name, queue in self.queues.items():
            for task_name, task in queue.tasks.items():
                app.task(name=task_name, queue=name)(_for_tenant(task))
        names, at_once = list(self.queues), sum(queue.at_once for queue in self.queues.values())
        async with connections(self.url, self.patience, at_most=CONNECTIONS) as pool:
            await pool.wait(self.patience.connect_seconds)
            async with app.open_async(pool), asyncio.TaskGroup() as tasks:
                listening = wake_on_notification(jobs, self.url, names, self.patience)
                beside = (listening, wake_when_due(jobs, self.due))
                helpers = [tasks.create_task(each) for each in beside]
                await take_jobs(app, names, at_once=at_once, times=self.times)
                for helper in helpers:
                    helper.cancel()


def overdue_search(queue: BackgroundQueue, late_seconds: float) -> Search:
    """Return the search for work that is overdue by ``late_seconds``."""
    return Search(f"SELECT {late_seconds!r}::float8 + ({queue.next_due})")


async def rescue_jobs(name: str, queue: BackgroundQueue, late_seconds: float) -> None:
    """Queue a new job for overdue work whose job, or whose process, was lost."""
    if count := await queue.rescue(late_seconds):
        log.warning("jobs.rescued", queue=name, count=count)
