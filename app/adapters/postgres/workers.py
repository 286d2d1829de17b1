"""The heartbeats of processes that execute runs."""

from sqlalchemy import text

from app.adapters.postgres.engines import Engines, transaction
from app.adapters.postgres.rows import cancel_request_from_row
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


class PostgresWorkers:
    """Implements the heartbeat port, over a connection that nothing else uses."""

    def __init__(self, engines: Engines) -> None:
        self._pool = engines.pulse

    async def beat(self, worker_id: str) -> Beat:
        """Say that this worker lives; learn what it must stop.

        Raises:
            StoreUnavailableError: the database does not answer.
        """
        async with transaction(self._pool) as connection:
            await connection.execute(BEAT, {"worker_id": worker_id})
            rows = (await connection.execute(OWNED, {"worker_id": worker_id})).mappings().all()
        cancel_requests = {
            RunKey(row["tenant_id"], row["run_id"]): cancel_request_from_row(row) for row in rows
        }
        stopped = {
            key: cancel_request
            for key, cancel_request in cancel_requests.items()
            if cancel_request is not None
        }
        return Beat(stopped=stopped, owned=frozenset(cancel_requests))

    async def leave(self, worker_id: str) -> None:
        """Say that this worker ends."""
        async with transaction(self._pool) as connection:
            await connection.execute(LEAVE, {"worker_id": worker_id})
