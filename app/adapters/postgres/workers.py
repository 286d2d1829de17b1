"""The processes that execute runs: their heartbeats, and recovery of the runs of dead ones.

Every process that executes runs looks for stale runs itself, and not in a job of the queue: a
process whose slots are full still has to notice that another one died, and a recovery that is
killed in the middle must not keep the next one out.

Nothing here waits for a lock, so recoveries disturb neither one another nor living processes: what
is locked now is looked at again the next time. A process that was only frozen finds its runs gone
when it thaws: whatever it writes is refused by the fence of the next claim.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from app.adapters.postgres.dispatch import QUEUE, QueueDispatch
from app.adapters.postgres.engines import Engines, Pool, transaction
from app.adapters.postgres.rows import cancel_request_from_row
from app.adapters.postgres.run_statements import FORGOTTEN, OWNED, OWNED_BY, TAKE_LOST
from app.runs.errors import StoreUnavailableError
from app.runs.ports import Beat
from app.runs.run import RunKey

log = structlog.get_logger(__name__)

BATCH = 200
"""How many runs one transaction takes; more of them wait for the next one."""

OLDEST = 1000
"""How many queued runs are looked at for whether they have a job."""

BEAT = """
INSERT INTO workers (worker_id) VALUES (%s)
ON CONFLICT (worker_id) DO UPDATE SET beat_at = clock_timestamp()
"""

LEAVE = "DELETE FROM workers WHERE worker_id = %s"

DEAD_WORKERS = """
SELECT worker_id FROM workers
WHERE beat_at < clock_timestamp() - make_interval(secs => %s::float8)
FOR UPDATE SKIP LOCKED
"""

DELETE_DEAD_WORKERS = f"""
DELETE FROM workers w WHERE worker_id = ANY(%s) AND NOT EXISTS (
    SELECT FROM runs WHERE runs.worker_id = w.worker_id AND status IN {OWNED}
)
"""  # noqa: S608 - nothing of a caller's is in it
"""The row stays as long as there are runs: it says for how long they were worked on."""

DELETE_STALLED_JOBS = """
DELETE FROM procrastinate_jobs WHERE id IN (
    SELECT job.id FROM procrastinate_jobs job
    LEFT JOIN procrastinate_workers worker ON worker.id = job.worker_id
    WHERE job.status = 'doing' AND job.queue_name = %s
        AND (worker.id IS NULL OR worker.last_heartbeat
            < clock_timestamp() - make_interval(secs => %s::float8))
    FOR UPDATE OF job SKIP LOCKED
)
"""
"""Delete jobs that a dead process had taken without claiming the run; it gets a new job."""


class PostgresWorkers:
    """Implements the heartbeat port, over a connection that nothing else uses."""

    def __init__(self, engines: Engines) -> None:
        self._pool = engines.pulse

    async def beat(self, worker_id: str) -> Beat:
        """Record that this worker lives; return the runs that are its own.

        Raises:
            StoreUnavailableError: the database does not answer.
        """
        async with transaction(self._pool) as connection:
            await connection.exec_driver_sql(BEAT, (worker_id,))
            rows = (await connection.exec_driver_sql(OWNED_BY, (worker_id,))).mappings().all()
        owned = {RunKey(row["tenant_id"], row["run_id"]): row for row in rows}
        requests = {key: cancel_request_from_row(row) for key, row in owned.items()}
        cancelled = {key: request for key, request in requests.items() if request is not None}
        return Beat(cancelled=cancelled, owned=frozenset(owned))

    async def leave(self, worker_id: str) -> None:
        """Record that this worker ends."""
        async with transaction(self._pool) as connection:
            await connection.exec_driver_sql(LEAVE, (worker_id,))


@dataclass(frozen=True, slots=True)
class StaleRunRecovery:
    """Puts back into the queue what would otherwise never be executed."""

    pool: Pool
    dispatch: QueueDispatch
    interval_seconds: float
    stale_seconds: float
    """How long a worker may be silent before its runs are taken from it."""

    async def run(self) -> None:
        """Look again and again; a database that is away is tried again the next time."""
        while True:
            try:
                await self.recover()
            except StoreUnavailableError:
                log.warning("recovery.database_away")
            await asyncio.sleep(self.interval_seconds)

    async def recover(self) -> Sequence[RunKey]:
        """Put back everything there is; return what got a job.

        Raises:
            StoreUnavailableError: the database does not answer.
        """
        found: list[RunKey] = []
        for take in (take_lost, take_forgotten):
            while True:
                async with transaction(self.pool) as connection:
                    taken = await take(connection, stale_seconds=self.stale_seconds)
                    await self.dispatch.defer(connection, taken)
                found.extend(taken)
                if len(taken) < BATCH:
                    break
        if found:
            log.warning("runs.recovered", count=len(found))
        return found


async def take_lost(connection: AsyncConnection, *, stale_seconds: float) -> Sequence[RunKey]:
    """Put runs of dead workers back into the queue; return them, for they need jobs."""
    silent = await connection.exec_driver_sql(DEAD_WORKERS, (stale_seconds,))
    dead = list(silent.scalars())
    taking = {"dead": dead, "stale_seconds": stale_seconds, "limit": BATCH}
    lost = (await connection.exec_driver_sql(TAKE_LOST, taking)).all()
    if dead:
        await connection.exec_driver_sql(DELETE_DEAD_WORKERS, (dead,))
    return sorted(RunKey(row.tenant_id, row.run_id) for row in lost)


async def take_forgotten(connection: AsyncConnection, *, stale_seconds: float) -> Sequence[RunKey]:
    """Return queued runs whose job was lost."""
    await connection.exec_driver_sql(DELETE_STALLED_JOBS, (QUEUE, stale_seconds))
    looking = {"stale_seconds": stale_seconds, "oldest": OLDEST, "limit": BATCH}
    forgotten = (await connection.exec_driver_sql(FORGOTTEN, looking)).all()
    return sorted(RunKey(row.tenant_id, row.run_id) for row in forgotten)
