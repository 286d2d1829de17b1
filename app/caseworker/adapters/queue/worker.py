"""Takes queued runs for this process, no more than it has slots for, and loses no wake-up.

The worker of the library asks for a job, and when there is none it sleeps until a notification or
its next poll. It forgets, after the answer has come, every notification so far. A job that was
committed after the database had looked and announced before the answer arrived is therefore neither
in the answer nor remembered, and waits for a poll. Here every wake-up is counted, and an empty
answer counts only if none came while it was on its way. It is enough to do this in ``fetch_job``:
between its return and the worker's forgetting nothing else runs.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol

import procrastinate
from procrastinate.connector import BaseConnector
from procrastinate.jobs import DeleteJobCondition, Job, JobInserted
from procrastinate.manager import JobManager, NotificationCallback, get_channel_for_queues
from psycopg_pool import AsyncConnectionPool

from caseworker.adapters.postgres.connections import Connection, Patience, connect_options
from caseworker.adapters.postgres.dispatch import EXECUTE, QUEUE
from caseworker.adapters.postgres.listener import listen
from caseworker.engine.supervision import forget_failure, until_done
from caseworker.runs.ports import RunStore
from caseworker.runs.run import Run
from caseworker.runs.run_slots import RunSlots

CONCURRENCY = 4
"""How many jobs are looked at at once; a job only claims its run, which then runs beside it."""


def claims_at_once(max_runs: int) -> int:
    """Return how many runs a process claims at once; one if that could exceed a tenant's share."""
    return CONCURRENCY if max_runs >= 20 * CONCURRENCY else 1


STOP_GRACE_SECONDS = 5.0
"""How long a worker may take to stop: its jobs have a second, then it unregisters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTimes:
    """How often the worker looks, in seconds."""

    poll: float
    """A notification makes it look at once; polls find what was announced while it was away."""
    heartbeat: float
    stale: float
    """How long the worker of another process may be silent before its jobs are taken from it."""


class Executor(Protocol):
    """Executes claimed runs in this process, so many at a time."""

    @property
    def worker_id(self) -> str:
        """Under which name runs are claimed."""
        ...

    @property
    def free_slots(self) -> int:
        """How many more runs may be started now."""
        ...

    @property
    def slots(self) -> RunSlots:
        """Which tenants hold the slots."""
        ...

    def reserve(self) -> bool:
        """Keep a slot for a run that is about to be claimed; False if there is none."""
        ...

    def unreserve(self) -> None:
        """Give a kept slot back."""
        ...

    async def room(self) -> None:
        """Wait until there may be a free slot."""
        ...

    async def freed(self) -> None:
        """Wait until a run has ended for which others of its tenant may have waited."""
        ...

    def start(self, run: Run, *, permitted_at: float) -> None:
        """Execute a run that was claimed for this process.

        ``permitted_at`` is when the claiming statement was sent, on the monotonic clock.
        """
        ...


class CapacityAwareJobManager(JobManager):
    """Gives a worker jobs while ``has_room`` says so, and is woken from outside."""

    def __init__(
        self,
        connector: BaseConnector,
        *,
        has_room: Callable[[], bool],
        looked: asyncio.Event | None = None,
    ) -> None:
        """Give no jobs while ``has_room`` is false; ``wake`` has it asked again.

        ``looked`` is set once the worker has looked for a job: only then is it ready.
        """
        super().__init__(connector)
        self._has_room = has_room
        self._notify_worker: NotificationCallback | None = None
        self._wakes = 0
        self.refused = asyncio.Event()
        """Set when there might have been a job, but there was no room for it."""
        self._looked = looked or asyncio.Event()

    async def register_worker(self) -> int:
        """Register the worker; if it is cancelled meanwhile, unregister it before it ends."""
        registering = asyncio.create_task(super().register_worker(), name="register worker")
        try:
            return await asyncio.shield(registering)
        except asyncio.CancelledError:
            # The row may be stored although its ID has not arrived yet.
            await self.unregister_worker(await registering)
            raise

    async def fetch_job(self, queues: Iterable[str] | None, worker_id: int) -> Job | None:
        """Return a job to do now, if there is one and there is room for it."""
        while True:
            if not self._has_room():
                self.refused.set()
                self._looked.set()
                return None
            wakes = self._wakes
            job = await self.next_job(queues, worker_id)
            self._looked.set()
            if job is not None or wakes == self._wakes:
                return job

    async def next_job(self, queues: Iterable[str] | None, worker_id: int) -> Job | None:
        """Take the job that is next; None if there is none."""
        return await super().fetch_job(queues, worker_id)

    async def listen_for_jobs(
        self, *, on_notification: NotificationCallback, queues: Iterable[str] | None = None
    ) -> None:
        """Remember whom to wake; the QueueWorker does the listening itself."""
        self._notify_worker = on_notification
        await self.wake()
        await asyncio.Event().wait()

    async def wake(self) -> None:
        """Have the worker look for jobs now."""
        self._wakes += 1
        if self._notify_worker is not None:
            await self._notify_worker(
                channel="", notification=JobInserted(type="job_inserted", job_id=0)
            )


@dataclass(frozen=True, slots=True)
class QueueWorker:
    """The queue's worker of this process."""

    url: str
    store: RunStore
    executor: Executor
    times: QueueTimes
    patience: Patience
    claiming: asyncio.Semaphore
    """Bounds how many runs are claimed at once: see :func:`claims_at_once`."""
    looked: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once it has looked for a job: only then is it ready."""

    async def run(self) -> None:
        """Take jobs until the database goes away.

        Raises:
            Exception: the database went away; which one depends on who noticed it first.
        """
        app = procrastinate.App(connector=procrastinate.PsycopgConnector())
        jobs = CapacityAwareJobManager(
            app.connector,
            has_room=lambda: self.executor.free_slots > 0,
            looked=self.looked,
        )
        app.job_manager = jobs
        app.task(name=EXECUTE, queue=QUEUE)(self._execute)
        async with connections(self.url, self.patience, at_most=CONCURRENCY) as pool:
            await pool.wait(self.patience.connect_seconds)
            async with app.open_async(pool), asyncio.TaskGroup() as tasks:
                told = wake_when_told(jobs, self.url, [QUEUE], self.patience)
                beside = (told, self._wake_when_free(jobs), self._take_what_waited())
                helpers = [tasks.create_task(each) for each in beside]
                await take_jobs(app, [QUEUE], at_once=CONCURRENCY, times=self.times)
                for helper in helpers:
                    helper.cancel()

    async def _wake_when_free(self, jobs: CapacityAwareJobManager) -> None:
        while True:
            await jobs.refused.wait()
            jobs.refused.clear()
            await self.executor.room()
            await jobs.wake()

    async def _take_what_waited(self) -> None:
        """Take runs that had to wait for others of their tenant: they have no job any more."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self.times.heartbeat):
                    await self.executor.freed()
            while self.executor.free_slots > 0 and await self._take_next():
                pass

    async def _execute(self, tenant: str, run_id: str) -> None:
        """Begin the run that is next: a job says that there is one, and not which."""
        while self.executor.free_slots <= 0:
            await self.executor.room()
        await self._take_next()

    async def _take_next(self) -> bool:
        """Claim the run that is next and begin it; False if there is none, or no room for it."""
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
        """Claim the run that is next of a tenant that holds less than its share."""
        claim, worker_id = self.store.claim, self.executor.worker_id
        slots = self.executor.slots
        full, served = slots.full_tenants, slots.served_last
        run = await claim(None, worker_id, excluding=[*full, *served]) if served else None
        return run or await claim(None, worker_id, excluding=full)


async def take_jobs(
    app: procrastinate.App, queues: Sequence[str], *, at_once: int, times: QueueTimes
) -> None:
    """Take jobs of some queues until the database goes away, or until this task is cancelled.

    However often this task is cancelled, the worker is cancelled once and may take
    ``STOP_GRACE_SECONDS`` to stop: a second cancel would keep it from unregistering.
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


async def wake_when_told(
    jobs: CapacityAwareJobManager, url: str, queues: Iterable[str], patience: Patience
) -> None:
    """Wake a worker whenever a job is announced."""

    async def heard(_: object) -> None:
        await jobs.wake()

    channels = get_channel_for_queues(queues)
    await listen(url, channels, patience=patience, heard=heard, listening=jobs.wake)


def connections(url: str, patience: Patience, *, at_most: int) -> "AsyncConnectionPool[Connection]":
    """Return a pool for a worker, not opened yet."""
    return AsyncConnectionPool(
        connection_class=Connection,
        kwargs=connect_options(url, patience),
        min_size=1,
        max_size=at_most,
        timeout=patience.connect_seconds,
        check=AsyncConnectionPool.check_connection,
        open=False,
    )
