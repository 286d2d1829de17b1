"""The queue's jobs as its worker sees them: none is taken without room, no wake-up is lost.

The worker of the library asks for a job, and when there is none it sleeps until a notification or
its next poll. It forgets, after the answer has come, every notification so far. A job that was
committed after the database had looked and announced before the answer arrived is therefore neither
in the answer nor remembered, and waits for a poll. Here every wake-up is counted, and an empty
answer counts only if none came while it was on its way. It is enough to do this in ``fetch_job``:
between its return and the worker's forgetting nothing else runs.
"""

import asyncio
from collections.abc import Callable, Iterable

from procrastinate.connector import BaseConnector
from procrastinate.jobs import Job, JobInserted
from procrastinate.manager import JobManager, NotificationCallback


class AttentiveJobs(JobManager):
    """Gives a worker jobs while ``has_room`` says so, and is woken from outside."""

    def __init__(self, connector: BaseConnector, *, has_room: Callable[[], bool]) -> None:
        """Give no jobs while ``has_room`` is false; whoever knows of new room calls ``wake``."""
        super().__init__(connector)
        self._has_room = has_room
        self._tell_worker: NotificationCallback | None = None
        self._wakes = 0
        self.refused = asyncio.Event()
        """Set when there might have been a job, but there was no room for it."""

    async def fetch_job(self, queues: Iterable[str] | None, worker_id: int) -> Job | None:
        """Return a job to do now, if there is one and there is room for it."""
        while True:
            if not self._has_room():
                self.refused.set()
                return None
            wakes = self._wakes
            job = await super().fetch_job(queues, worker_id)
            if job is not None or wakes == self._wakes:
                return job

    async def listen_for_jobs(
        self, *, on_notification: NotificationCallback, queues: Iterable[str] | None = None
    ) -> None:
        """Remember whom to wake; the listening itself is done, and supervised, outside."""
        self._tell_worker = on_notification
        await self.wake()
        await asyncio.Event().wait()

    async def wake(self) -> None:
        """Have the worker look for jobs now."""
        self._wakes += 1
        if self._tell_worker is not None:
            await self._tell_worker(
                channel="", notification=JobInserted(type="job_inserted", job_id=0)
            )
