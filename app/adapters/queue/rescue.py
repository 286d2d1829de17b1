"""Takes runs from processes that fell silent, and finds queued runs that nobody was told of.

Every process that executes runs does this beside its queue worker, and not as a job of the queue:
a process whose slots are full still has to notice that another one died, and a rescuer that is
killed in the middle must not keep the next one out.

Nothing here waits for a lock, so rescuers disturb neither one another nor those who live: what is
locked now is looked at again the next time. A process that was only frozen finds its runs gone when
it thaws: whatever it writes is refused by the fence of the next claim.
"""

import asyncio
from collections.abc import Sequence

import structlog
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.adapters.postgres.engines import Pool, transaction
from app.adapters.postgres.ports import Dispatch
from app.adapters.queue.dispatch import QUEUE
from app.runs.errors import StoreUnavailableError
from app.runs.run import RunKey

log = structlog.get_logger(__name__)

AT_ONCE = 200
"""How many runs one transaction takes; more of them wait for the next one."""

OLDEST = 1000
"""How many queued runs are looked at for whether they have a job."""

SILENT = text("""
SELECT worker_id FROM workers
WHERE beat_at < clock_timestamp() - make_interval(secs => :stale_seconds)
FOR UPDATE SKIP LOCKED
""")

LOST = text("""
WITH lost AS MATERIALIZED (
    SELECT tenant_id, run_id FROM runs
    WHERE status IN ('running', 'waiting') AND (
        worker_id = ANY(:silent)
        OR (claimed_at < clock_timestamp() - make_interval(secs => :stale_seconds)
            AND NOT EXISTS (SELECT FROM workers w WHERE w.worker_id = runs.worker_id))
    )
    ORDER BY claimed_at LIMIT :at_once
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE runs SET status = 'queued', worker_id = NULL, queued_at = clock_timestamp(),
    active_seconds = runs.active_seconds + greatest(0, extract(epoch FROM
        coalesce((SELECT beat_at FROM workers w WHERE w.worker_id = runs.worker_id),
                 runs.claimed_at) - runs.claimed_at))
FROM lost WHERE runs.tenant_id = lost.tenant_id AND runs.run_id = lost.run_id
RETURNING runs.tenant_id, runs.run_id
""")
"""A run whose worker has no row is left alone for as long as a silent worker would be: its process
may just have come back, and have accepted the run before its next beat."""

BURY = text("""
DELETE FROM workers w WHERE worker_id = ANY(:silent) AND NOT EXISTS (
    SELECT FROM runs WHERE runs.worker_id = w.worker_id AND status IN ('running', 'waiting')
)
""")
"""The row stays as long as there are runs: it says for how long they were worked on."""

DROP_STALLED = text("""
DELETE FROM procrastinate_jobs WHERE id IN (
    SELECT job.id FROM procrastinate_jobs job
    LEFT JOIN procrastinate_workers worker ON worker.id = job.worker_id
    WHERE job.status = 'doing' AND job.queue_name = :queue
        AND (worker.id IS NULL OR worker.last_heartbeat
            < clock_timestamp() - make_interval(secs => :stale_seconds))
    FOR UPDATE OF job SKIP LOCKED
)
""")
"""Drop what a lost process had taken and not claimed; the run gets a new job."""

FORGOTTEN = text("""
SELECT tenant_id, run_id FROM (
    SELECT tenant_id, run_id FROM runs
    WHERE status = 'queued'
        AND queued_at < clock_timestamp() - make_interval(secs => :stale_seconds)
    ORDER BY queued_at LIMIT :oldest
) run LEFT JOIN LATERAL (
    SELECT id FROM procrastinate_jobs
    WHERE queueing_lock = run.tenant_id || '/' || run.run_id AND status = 'todo' LIMIT 1
) job ON true
WHERE job.id IS NULL LIMIT :at_once
""")
"""Jobs are taken in the order of their age, so a run that has none comes to be among the oldest at
the latest when it is its turn; looking at those alone costs the same however many wait."""


class Rescue:
    """Puts back into the queue what would otherwise never be executed."""

    def __init__(
        self,
        pool: Pool,
        dispatch: Dispatch,
        *,
        interval_seconds: float,
        stale_seconds: float,
    ) -> None:
        """Take runs from workers that have been silent for ``stale_seconds``."""
        self._pool = pool
        self._dispatch = dispatch
        self._interval_seconds = interval_seconds
        self._stale_seconds = stale_seconds

    async def run(self) -> None:
        """Look for ever; a database that is away is tried again the next time."""
        while True:
            try:
                await self.look()
            except StoreUnavailableError:
                log.warning("rescue.database_away")
            await asyncio.sleep(self._interval_seconds)

    async def look(self) -> Sequence[RunKey]:
        """Put back everything there is; return what got a job.

        Raises:
            StoreUnavailableError: the database does not answer.
        """
        found: list[RunKey] = []
        for take in (take_lost, take_forgotten):
            while True:
                async with transaction(self._pool) as connection:
                    taken = await take(connection, stale_seconds=self._stale_seconds)
                    await self._dispatch.defer(connection, taken)
                found.extend(taken)
                if len(taken) < AT_ONCE:
                    break
        if found:
            log.warning("runs.rescued", count=len(found))
        return found


async def take_lost(connection: AsyncConnection, *, stale_seconds: float) -> Sequence[RunKey]:
    """Put runs of silent workers back into the queue; return them, for they need jobs."""
    stale = {"stale_seconds": stale_seconds}
    silent = list((await connection.execute(SILENT, stale)).scalars())
    taking = {**stale, "silent": silent, "at_once": AT_ONCE}
    lost = (await connection.execute(LOST, taking)).all()
    if silent:
        await connection.execute(BURY, {"silent": silent})
    return sorted(RunKey(*row) for row in lost)


async def take_forgotten(connection: AsyncConnection, *, stale_seconds: float) -> Sequence[RunKey]:
    """Return queued runs whose job was lost."""
    stale = {"stale_seconds": stale_seconds}
    await connection.execute(DROP_STALLED, {**stale, "queue": QUEUE})
    looking = {**stale, "oldest": OLDEST, "at_once": AT_ONCE}
    forgotten = (await connection.execute(FORGOTTEN, looking)).all()
    return sorted(RunKey(*row) for row in forgotten)
