"""Jobs of the queue, deferred in our own transactions: runs for whichever worker is free."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import procrastinate
from procrastinate.exceptions import AlreadyEnqueued, ConnectorException
from procrastinate.jobs import Job
from sqlalchemy.ext.asyncio import AsyncConnection

from caseworker.adapters.postgres.connections import is_passing
from caseworker.observability.store_errors import StoreUnavailableError
from caseworker.runs.run import RunKey

EXECUTE = "execute_run"
QUEUE = "runs"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceJob:
    """A job that executes no run: it wakes a process to do what is due by a row of its own."""

    queue: str
    task: str
    lock: str
    """While a job with it waits, another one is not added."""
    arguments: Mapping[str, Any]
    at: datetime | None
    """When it may be taken; None is now."""


class QueueDispatch:
    """Defers jobs inside the transactions that queue the runs."""

    def __init__(self, url: str) -> None:
        self._app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=url))

    async def defer(
        self, connection: AsyncConnection, runs: Mapping[RunKey, datetime | None]
    ) -> None:
        """Defer a job for each run, to be taken from the time that is given.

        A run that has a waiting job keeps that one.

        Raises:
            StoreUnavailableError: the database went away.
        """
        jobs = [_job(key, at) for key, at in runs.items()]
        if not jobs or await self._defer(connection, jobs):
            return
        for job in jobs:
            await self._defer(connection, [job])

    async def defer_job(self, connection: AsyncConnection, job: ServiceJob) -> None:
        """Defer a job, unless there is one like it.

        Raises:
            StoreUnavailableError: the database went away.
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
        """Defer jobs in one statement; False, and nothing done, if one of them waits already."""
        driver = (await connection.get_raw_connection()).driver_connection
        try:
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
