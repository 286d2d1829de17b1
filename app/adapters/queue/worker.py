"""Takes queued runs for this process, and rescues those whose process fell silent."""

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import procrastinate
import structlog
from procrastinate.jobs import DeleteJobCondition, Status
from sqlalchemy.ext.asyncio import AsyncEngine

from app.adapters.postgres.engines import transaction
from app.adapters.postgres.ports import Dispatch
from app.adapters.postgres.workers import rescue_in
from app.adapters.queue.dispatch import EXECUTE, QUEUE, RESCUE, RESCUE_QUEUE
from app.runs.executor import RunExecutor
from app.runs.ports import RunStore
from app.runs.run import RunKey

log = structlog.get_logger(__name__)

CONCURRENCY = 4
"""How many jobs are looked at at once; a job only claims its run, which then runs beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTimes:
    """How often the worker looks, in seconds."""

    poll: float = 0.5
    heartbeat: float = 2.0
    stale: float = 10.0
    """How long a process may be silent before its runs are taken from it."""


class QueueWorker:
    """The queue's worker of this process."""

    def __init__(
        self,
        url: str,
        *,
        store: RunStore,
        executor: RunExecutor,
        engine: AsyncEngine,
        dispatch: Dispatch,
        times: QueueTimes,
    ) -> None:
        self._store = store
        self._executor = executor
        self._engine = engine
        self._dispatch = dispatch
        self._times = times
        self._url = url

    async def run(self) -> None:
        """Take jobs until the database goes away; whoever supervises this starts it again."""
        app = self._app()
        async with app.open_async():
            await app.run_worker_async(
                queues=[QUEUE, RESCUE_QUEUE],
                concurrency=CONCURRENCY,
                fetch_job_polling_interval=self._times.poll,
                abort_job_polling_interval=self._times.poll,
                update_heartbeat_interval=self._times.heartbeat,
                stalled_worker_timeout=self._times.stale,
                shutdown_graceful_timeout=1.0,
                delete_jobs=DeleteJobCondition.ALWAYS,
                install_signal_handlers=False,
            )

    def _app(self) -> procrastinate.App:
        connector = procrastinate.PsycopgConnector(
            conninfo=self._url, min_size=1, max_size=CONCURRENCY
        )
        app = procrastinate.App(connector=connector)
        app.task(name=EXECUTE, queue=QUEUE)(self._execute)
        rescue = app.task(name=RESCUE, queue=RESCUE_QUEUE, queueing_lock=RESCUE, lock=RESCUE)(
            self._rescue_for(app)
        )
        app.periodic(cron="* * * * * */2")(rescue)
        return app

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

    def _rescue_for(self, app: procrastinate.App) -> Callable[[int], Awaitable[None]]:
        async def rescue(timestamp: int) -> None:
            """Put back the runs of processes that fell silent, and drop their jobs."""
            stale = self._times.stale
            for job in await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=stale):
                await app.job_manager.finish_job(job, status=Status.FAILED, delete_job=True)
            async with transaction(self._engine) as connection:
                found = await rescue_in(connection, stale_seconds=stale)
                await self._dispatch.defer(connection, found)
            if found:
                log.warning("runs.rescued", count=len(found))

        return rescue
