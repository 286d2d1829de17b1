"""The heartbeats of processes that execute runs, and the rescue of those that fell silent."""

from collections.abc import Sequence

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from app.adapters.postgres.engines import Engines, transaction
from app.adapters.postgres.rows import wish_from_row
from app.runs.ports import Beat
from app.runs.run import RunKey

BEAT = text("""
INSERT INTO workers (worker_id) VALUES (:worker_id)
ON CONFLICT (worker_id) DO UPDATE SET beat_at = clock_timestamp()
""")

OWNED = text("""
SELECT tenant_id, run_id, cancel_requested_at, cancel_requested_by, cancel_reason
FROM runs WHERE worker_id = :worker_id AND status IN ('running', 'waiting')
""")

LEAVE = text("DELETE FROM workers WHERE worker_id = :worker_id")

RESCUE = text("""
WITH silent AS (
    SELECT worker_id FROM workers
    WHERE beat_at < clock_timestamp() - make_interval(secs => :stale_seconds)
    FOR UPDATE SKIP LOCKED
), lost AS (
    UPDATE runs SET status = 'queued', worker_id = NULL, queued_at = clock_timestamp(),
        active_seconds = runs.active_seconds + greatest(0, extract(epoch FROM
            coalesce((SELECT beat_at FROM workers w WHERE w.worker_id = runs.worker_id),
                     runs.claimed_at) - runs.claimed_at))
    WHERE runs.status IN ('running', 'waiting') AND (
        runs.worker_id IN (SELECT worker_id FROM silent)
        OR NOT EXISTS (SELECT FROM workers w WHERE w.worker_id = runs.worker_id)
    )
    RETURNING runs.tenant_id, runs.run_id
), gone AS (
    DELETE FROM workers WHERE worker_id IN (SELECT worker_id FROM silent)
)
SELECT tenant_id, run_id FROM lost
""")

FORGOTTEN = text("""
SELECT tenant_id, run_id FROM runs
WHERE status = 'queued' AND queued_at < clock_timestamp() - make_interval(secs => :stale_seconds)
    AND NOT EXISTS (
        SELECT FROM procrastinate_jobs job
        WHERE job.queueing_lock = runs.tenant_id || '/' || runs.run_id AND job.status = 'todo'
    )
ORDER BY queued_at LIMIT 1000
FOR UPDATE SKIP LOCKED
""")


class PostgresWorkers:
    """Implements the heartbeat port."""

    def __init__(self, engines: Engines) -> None:
        self._engine = engines.control

    async def beat(self, worker_id: str) -> Beat:
        """Say that this worker lives; learn what it must stop."""
        async with transaction(self._engine) as connection:
            await connection.execute(BEAT, {"worker_id": worker_id})
            rows = (await connection.execute(OWNED, {"worker_id": worker_id})).mappings().all()
        wishes = {RunKey(row["tenant_id"], row["run_id"]): wish_from_row(row) for row in rows}
        stopped = {key: wish for key, wish in wishes.items() if wish is not None}
        return Beat(stopped=stopped, owned=frozenset(wishes))

    async def leave(self, worker_id: str) -> None:
        """Say that this worker ends."""
        async with transaction(self._engine) as connection:
            await connection.execute(LEAVE, {"worker_id": worker_id})


async def rescue_in(connection: AsyncConnection, *, stale_seconds: float) -> Sequence[RunKey]:
    """Put the runs of silent workers back into the queue; return what needs a job.

    Queued runs whose job was lost are among them.
    """
    limit = {"stale_seconds": stale_seconds}
    lost = (await connection.execute(RESCUE, limit)).all()
    forgotten = (await connection.execute(FORGOTTEN, limit)).all()
    return sorted({RunKey(*row) for row in (*lost, *forgotten)})
