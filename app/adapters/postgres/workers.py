"""The processes that execute runs: their heartbeats, and recovery of the runs of dead ones.

Every process that executes runs looks for stale runs itself, and not in a job of the queue: a
process whose slots are full still has to notice that another one died, and a recovery that is
killed in the middle must not keep the next one out.

Beside its row a living process holds an advisory lock, which goes with its connection: a process
that was killed has let go of it. Who is silent is judged by :mod:`app.runs.silence`.

Nothing here waits for a row's lock, so recoveries disturb neither one another nor living processes:
what is locked now is looked at again the next time. A process that was only frozen finds its runs
gone when it thaws: whatever it writes is refused by the fence of the next claim.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from app.adapters.postgres.dispatch import QUEUE, QueueDispatch
from app.adapters.postgres.engines import Engines, Pool, transaction
from app.adapters.postgres.rows import cancel_request_from_row
from app.adapters.postgres.run_statements import FORGOTTEN, OWNED, OWNED_BY, TAKE_LOST
from app.runs.errors import StoreUnavailableError
from app.runs.ports import Beat
from app.runs.run import RunKey
from app.runs.silence import SilenceWatch, Silent

log = structlog.get_logger(__name__)

BATCH = 200
"""How many runs one transaction takes; more of them wait for the next one."""

OLDEST = 1000
"""How many queued runs are looked at for whether they have a job."""

BEAT = """
INSERT INTO workers (worker_id) VALUES (%s)
ON CONFLICT (worker_id) DO UPDATE SET beat_at = clock_timestamp()
"""

_LIFE_LOCK = "hashtextextended({worker_id}, 1)"

HOLD_LIFE_LOCK = f"SELECT pg_advisory_lock_shared({_LIFE_LOCK.format(worker_id='%s')})"
"""Shared, because the connection before this one may not be gone yet on the server's side."""

LEAVE = "DELETE FROM workers WHERE worker_id = %s"

BEATS = "SELECT worker_id, beat_at FROM workers"

ANY_ALIVE = """
SELECT EXISTS (
    SELECT FROM workers WHERE beat_at > clock_timestamp() - make_interval(secs => %s::float8)
)
"""

DEAD_WORKERS = f"""
SELECT worker_id FROM workers JOIN unnest(%s::text[], %s::timestamptz[], %s::boolean[])
    AS silent(worker_id, beat_at, surely) USING (worker_id, beat_at)
WHERE CASE WHEN surely THEN true
    ELSE pg_try_advisory_xact_lock({_LIFE_LOCK.format(worker_id="worker_id")}) END
FOR UPDATE OF workers SKIP LOCKED
"""  # noqa: S608 - nothing of a caller's is in it, here and below
"""Of silent workers, those that have not beaten since they were looked at, and that hold no
connection unless they have been silent for too long."""

DELETE_DEAD_WORKERS = f"""
DELETE FROM workers w WHERE worker_id = ANY(%s) AND NOT EXISTS (
    SELECT FROM runs WHERE runs.worker_id = w.worker_id AND status IN {OWNED}
)
"""  # noqa: S608
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
            held = (await connection.get_raw_connection()).info
            if held.get(HOLD_LIFE_LOCK) != worker_id:
                await connection.exec_driver_sql(HOLD_LIFE_LOCK, (worker_id,))
                held[HOLD_LIFE_LOCK] = worker_id
            await connection.exec_driver_sql(BEAT, (worker_id,))
            rows = (await connection.exec_driver_sql(OWNED_BY, (worker_id,))).mappings().all()
        owned = {RunKey(row["tenant_id"], row["run_id"]): row for row in rows}
        requests = {key: cancel_request_from_row(row) for key, row in owned.items()}
        cancelled = {key: request for key, request in requests.items() if request is not None}
        return Beat(cancelled=cancelled, owned=frozenset(owned))

    async def leave(self, worker_id: str) -> None:
        """Record that this worker ends.

        Raises:
            StoreUnavailableError: the database does not answer.
        """
        async with transaction(self._pool) as connection:
            await connection.exec_driver_sql(LEAVE, (worker_id,))


async def any_alive(pool: Pool, *, stale_seconds: float) -> bool:
    """Tell whether any worker has beaten lately, on the database's clock.

    Raises:
        StoreUnavailableError: the database does not answer.
    """
    async with transaction(pool) as connection:
        alive = await connection.exec_driver_sql(ANY_ALIVE, (stale_seconds,))
        return bool(alive.scalar_one())


@dataclass(slots=True, kw_only=True)
class StaleRunRecovery:
    """Puts back into the queue what would otherwise never be executed."""

    pool: Pool
    dispatch: QueueDispatch
    interval_seconds: float
    stale_seconds: float
    """How long a worker may be silent before its runs are taken from it at the latest."""
    max_attempts: int
    """How often a run may be begun; one that fails as lost when it is taken need not wait."""
    clock: Callable[[], float] = time.monotonic
    _watch: SilenceWatch = field(init=False)

    def __post_init__(self) -> None:
        """Begin with nothing seen."""
        self._watch = SilenceWatch(
            interval_seconds=self.interval_seconds, stale_seconds=self.stale_seconds
        )

    async def run(self) -> None:
        """Look again and again; a database that is away is tried again the next time."""
        away = False
        while True:
            try:
                await self.recover()
                away = False
            except StoreUnavailableError:
                self._watch.interrupted()
                if not away:
                    log.warning("recovery.database_away")
                away = True
            began = self.clock()
            await asyncio.sleep(self.interval_seconds)
            if self.clock() - began > 2 * self.interval_seconds + 0.5:
                self._watch.interrupted()  # this process was frozen, or far too busy

    async def recover(self) -> Sequence[RunKey]:
        """Put back everything there is; return what got a job.

        Raises:
            StoreUnavailableError: the database does not answer.
        """
        silent = await self._silent()
        found: list[RunKey] = []
        for take in (partial(self._take_lost, silent), self._take_forgotten):
            while True:
                async with transaction(self.pool) as connection:
                    taken = await take(connection)
                    await self.dispatch.defer(connection, taken)
                found.extend(taken)
                if len(taken) < BATCH:
                    break
        if found:
            log.warning("runs.recovered", count=len(found))
        return found

    async def _silent(self) -> Sequence[Silent]:
        began = self.clock()
        async with transaction(self.pool) as connection:
            rows = (await connection.exec_driver_sql(BEATS)).all()
        beats = {row.worker_id: row.beat_at for row in rows}
        return self._watch.look(beats, began=began, ended=self.clock())

    async def _take_lost(
        self, silent: Sequence[Silent], connection: AsyncConnection
    ) -> Mapping[RunKey, datetime]:
        return await take_lost(
            connection,
            silent,
            stale_seconds=self.stale_seconds,
            max_attempts=self.max_attempts,
        )

    async def _take_forgotten(self, connection: AsyncConnection) -> Mapping[RunKey, datetime]:
        return await take_forgotten(connection, stale_seconds=self.stale_seconds)


async def take_lost(
    connection: AsyncConnection,
    silent: Sequence[Silent],
    *,
    stale_seconds: float,
    max_attempts: int,
) -> Mapping[RunKey, datetime]:
    """Put runs of dead workers back into the queue.

    Return when each may be begun again: one that was lost more than once waits, in case it is what
    ends its workers.
    """
    judged = (
        [each.worker_id for each in silent],
        [each.beat_at for each in silent],
        [each.surely for each in silent],
    )
    dead = list((await connection.exec_driver_sql(DEAD_WORKERS, judged)).scalars())
    taking = {
        "dead": dead,
        "stale_seconds": stale_seconds,
        "max_attempts": max_attempts,
        "limit": BATCH,
    }
    lost = (await connection.exec_driver_sql(TAKE_LOST, taking)).all()
    if dead:
        await connection.exec_driver_sql(DELETE_DEAD_WORKERS, (dead,))
    return _places(lost)


async def take_forgotten(
    connection: AsyncConnection, *, stale_seconds: float
) -> Mapping[RunKey, datetime]:
    """Return queued runs whose job was lost, and since when they could have been begun."""
    await connection.exec_driver_sql(DELETE_STALLED_JOBS, (QUEUE, stale_seconds))
    looking = {"stale_seconds": stale_seconds, "oldest": OLDEST, "limit": BATCH}
    return _places((await connection.exec_driver_sql(FORGOTTEN, looking)).all())


def _places(rows: Sequence[Any]) -> Mapping[RunKey, datetime]:
    found = {RunKey(row.tenant_id, row.run_id): row.queued_at for row in rows}
    return {key: found[key] for key in sorted(found)}
