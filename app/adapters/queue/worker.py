"""Takes queued runs for this process."""

import asyncio
import time
from dataclasses import dataclass

import procrastinate
from procrastinate.jobs import DeleteJobCondition
from procrastinate.manager import get_channel_for_queues
from psycopg_pool import AsyncConnectionPool

from app.adapters.postgres.connections import Connection, Patience, connect_options
from app.adapters.postgres.engines import Pool
from app.adapters.postgres.listener import listen
from app.adapters.postgres.ports import Dispatch
from app.adapters.queue.attentive_jobs import AttentiveJobs
from app.adapters.queue.dispatch import EXECUTE, QUEUE
from app.adapters.queue.ports import Executor
from app.adapters.queue.rescue import Rescue
from app.runs.ports import RunStore
from app.runs.run import RunKey

CONCURRENCY = 4
"""How many jobs are looked at at once; a job only claims its run, which then runs beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTimes:
    """How often the worker looks, in seconds."""

    poll: float
    """A notification makes it look at once; polls find what was announced while it was away."""
    heartbeat: float
    stale: float
    """How long a process may be silent before its runs are taken from it."""


class QueueWorker:
    """The queue's worker of this process, with the rescue of lost runs beside it."""

    def __init__(
        self,
        url: str,
        *,
        store: RunStore,
        executor: Executor,
        engine: Pool,
        dispatch: Dispatch,
        times: QueueTimes,
        patience: Patience,
    ) -> None:
        self._url = url
        self._patience = patience
        self._store = store
        self._executor = executor
        self._times = times
        self._rescue = Rescue(
            engine, dispatch, interval_seconds=times.heartbeat, stale_seconds=times.stale
        )

    async def run(self) -> None:
        """Take jobs until the database goes away; whoever supervises this starts it again.

        Raises:
            Exception: the database went away; which one depends on who noticed it first.
        """
        app = procrastinate.App(connector=procrastinate.PsycopgConnector())
        jobs = AttentiveJobs(app.connector, has_room=lambda: self._executor.free_slots > 0)
        app.job_manager = jobs
        app.task(name=EXECUTE, queue=QUEUE)(self._execute)
        async with self._pool() as pool:
            await pool.wait(self._patience.connect_seconds)
            async with app.open_async(pool), asyncio.TaskGroup() as tasks:
                beside = (self._listen(jobs), self._wake_when_free(jobs), self._rescue.run())
                helpers = [tasks.create_task(each) for each in beside]
                await self._work(app)
                for helper in helpers:
                    helper.cancel()

    async def _work(self, app: procrastinate.App) -> None:
        await app.run_worker_async(
            queues=[QUEUE],
            concurrency=CONCURRENCY,
            fetch_job_polling_interval=self._times.poll,
            abort_job_polling_interval=self._times.poll,
            update_heartbeat_interval=self._times.heartbeat,
            stalled_worker_timeout=self._times.stale,
            shutdown_graceful_timeout=1.0,
            delete_jobs=DeleteJobCondition.ALWAYS,
            install_signal_handlers=False,
        )

    async def _listen(self, jobs: AttentiveJobs) -> None:
        async def heard(_: str) -> None:
            await jobs.wake()

        channels = get_channel_for_queues([QUEUE])
        await listen(self._url, channels, patience=self._patience, heard=heard, listening=jobs.wake)

    async def _wake_when_free(self, jobs: AttentiveJobs) -> None:
        while True:
            await jobs.refused.wait()
            jobs.refused.clear()
            await self._executor.room()
            await jobs.wake()

    async def _execute(self, tenant: str, run_id: str) -> None:
        """Claim a run and begin it; do nothing if it was claimed or stopped meanwhile."""
        while not self._executor.reserve():
            await self._executor.room()
        permitted_at = time.monotonic()
        try:
            run = await self._store.claim(RunKey(tenant, run_id), self._executor.worker_id)
        finally:
            self._executor.unreserve()
        if run is not None:
            self._executor.start(run, permitted_at=permitted_at)

    def _pool(self) -> "AsyncConnectionPool[Connection]":
        return AsyncConnectionPool(
            connection_class=Connection,
            kwargs=connect_options(self._url, self._patience),
            min_size=1,
            max_size=CONCURRENCY,
            timeout=self._patience.connect_seconds,
            check=AsyncConnectionPool.check_connection,
            open=False,
        )
