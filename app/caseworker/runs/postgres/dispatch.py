"""Adds jobs to the queue, in the transaction that queues the run; any free worker takes them."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import procrastinate
from procrastinate.exceptions import AlreadyEnqueued, ConnectorException
from procrastinate.jobs import Job
from sqlalchemy.ext.asyncio import AsyncConnection

from caseworker.platform.errors import StoreUnavailableError
from caseworker.platform.postgres.connections import is_passing
from caseworker.runs.run import RunKey

EXECUTE = "execute_run"
QUEUE = "runs"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceJob:
    """A job that only wakes a process for work (other than a run) stored in a table row."""

    queue: str
    task: str
    lock: str
    """Name of the queueing lock: no job is added while another one with the same lock waits."""
    arguments: Mapping[str, Any]
    at: datetime | None
    """Earliest start time; None means at once."""


class QueueDispatch:
    """Adds jobs to the queue, inside the transactions that store the work."""

    def __init__(self, url: str) -> None:
        self._app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))

    async def defer(
        self, connection: AsyncConnection, runs: Mapping[RunKey, datetime | None]
    ) -> None:
        """Add one job for each run, to be taken no earlier than the given time (None: at once).

        A run that already has a waiting job keeps that job.

        Raises:
            StoreUnavailableError: the database connection was lost.
        """
        jobs = [_job(key, at) for key, at in runs.items()]
        if not jobs or await self._defer(connection, jobs):
            return
        # At least one run has a waiting job, which rejects the whole batch.
        for job in jobs:
            await self._defer(connection, [job])

    async def defer_job(self, connection: AsyncConnection, job: ServiceJob) -> None:
        """Add a job, unless one with the same lock is already waiting.

        Raises:
            StoreUnavailableError: the database connection was lost.
        """
        deferred = Job(
            id=None,
            queue=job.queue,
            lock=None,
            queueing_lock=job.lock,
            task_name=job.task,
            task_kwargs=dict(job.arguments),
            scheduled_at=job.at,
        )
        await self._defer(connection, [deferred])

    async def _defer(self, connection: AsyncConnection, jobs: list[Job]) -> bool:
        """Defer jobs in one statement; return False, without any change, if one already waits."""
        driver = (await connection.get_raw_connection()).driver_connection
        try:
            # A savepoint: a duplicate job must not abort the caller's transaction.
            async with connection.begin_nested():
                await self._app.job_manager.batch_defer_jobs_async(jobs, connection=driver)
        except AlreadyEnqueued:
            return False
        except ConnectorException as error:
            if is_passing(error.__cause__):
                raise StoreUnavailableError from error
            raise
        return True


def _job(key: RunKey, at: datetime | None) -> Job:
    return Job(
        id=None,
        queue=QUEUE,
        lock=None,
        queueing_lock=f"{key.tenant}/{key.run_id}",
        task_name=EXECUTE,
        task_kwargs={"tenant": key.tenant, "run_id": key.run_id},
        scheduled_at=at,
    )
