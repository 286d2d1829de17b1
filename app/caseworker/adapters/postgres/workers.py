"""The processes that execute runs: their heartbeats, and recovery of the runs of dead ones.

Every process that executes runs looks for stale runs itself, and not in a job of the queue: a
process whose slots are full still has to notice that another one died, and a recovery that is
killed in the middle must not keep the next one out.

Beside its row a living process holds an advisory lock, which goes with its connection: a process
that was killed has let go of it. Who is silent is judged by :mod:`caseworker.runs.silence`.

Nothing here waits for a row's lock, so recoveries disturb neither one another nor living processes:
what is locked now is looked at again the next time. A process that was only frozen finds its runs
gone when it thaws: whatever it writes is refused by the fence of the next claim.
"""

import asyncio
import itertools
import os
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

import structlog
from sqlalchemy.ext.asyncio import AsyncConnection

from caseworker.adapters.postgres.accept_and_cancel import halt_overdue
from caseworker.adapters.postgres.approvals import WAKE_DUE
from caseworker.adapters.postgres.dispatch import QUEUE, QueueDispatch
from caseworker.adapters.postgres.engines import Engines, Pool, transaction
from caseworker.adapters.postgres.rows import cancel_request_from_row, key_from_row
from caseworker.adapters.postgres.run_statements import OWNED, OWNED_BY, TAKE_LOST
from caseworker.observability.store_errors import StoreUnavailableError
from caseworker.runs.observing import RunObservers
from caseworker.runs.ports import Beat
from caseworker.runs.run import RunKey
from caseworker.runs.silence import LOOKS_PER_BEAT, SilenceWatch, Silent

log = structlog.get_logger(__name__)

BATCH = 200
"""How many runs one transaction takes; more of them wait for the next one."""

OLDEST = 1000
"""How many queued runs are looked at for whether they have a job."""

BEAT = """
INSERT INTO workers (worker_id, host, pid, drain_requested_at) VALUES (%s, %s, %s, %s)
ON CONFLICT (worker_id) DO UPDATE SET beat_at = clock_timestamp()
RETURNING drain_requested_at
"""

_LIFE_LOCK = "hashtextextended({worker_id}, 1)"

HOLD_LIFE_LOCK = f"SELECT pg_advisory_lock_shared({_LIFE_LOCK.format(worker_id='%s')})"
"""Shared, because the connection before this one may not be gone yet on the server's side."""

LEAVE = "DELETE FROM workers WHERE worker_id = %s"

BEATS = "SELECT worker_id, beat_at FROM workers"

ANY_TAKING = """
SELECT EXISTS (
    SELECT FROM workers WHERE drain_requested_at IS NULL
        AND beat_at > clock_timestamp() - make_interval(secs => %s::float8)
)
"""

LIST = f"""
SELECT worker_id, host, pid, started_at, drain_requested_at, beat_at,
    extract(epoch FROM clock_timestamp() - beat_at)::float8 AS silent_seconds,
    (SELECT count(*) FROM runs WHERE runs.worker_id = w.worker_id AND status IN {OWNED}) AS runs
FROM workers w ORDER BY host, started_at, worker_id
"""  # noqa: S608 - nothing of a caller's is in it, here and below

DRAIN = """
UPDATE workers SET drain_requested_at = coalesce(drain_requested_at, clock_timestamp())
WHERE worker_id = %s RETURNING worker_id
"""

DEAD_WORKERS = f"""
SELECT worker_id FROM workers JOIN unnest(%s::text[], %s::timestamptz[], %s::boolean[])
    AS silent(worker_id, beat_at, surely) USING (worker_id, beat_at)
WHERE CASE WHEN surely THEN true
    ELSE pg_try_advisory_xact_lock({_LIFE_LOCK.format(worker_id="worker_id")}) END
FOR UPDATE OF workers SKIP LOCKED
"""  # noqa: S608
"""Of silent workers, those that have not beaten since they were looked at, and that hold no
connection unless they have been silent for too long."""

DELETE_DEAD_WORKERS = f"""
DELETE FROM workers w WHERE worker_id = ANY(%s) AND NOT EXISTS (
    SELECT FROM runs WHERE runs.worker_id = w.worker_id AND status IN {OWNED}
)
"""  # noqa: S608
"""The row stays as long as there are runs: it says for how long they were worked on."""

FORGOTTEN = """
SELECT run.tenant_id, run_id, queued_at FROM (
    SELECT tenant_id, run_id, queued_at FROM runs
    WHERE status = 'queued'
        AND queued_at < clock_timestamp() - make_interval(secs => %(stale_seconds)s::float8)
        AND concurrency_key IS NULL
    ORDER BY queued_at LIMIT %(oldest)s
) run LEFT JOIN quotas ON quotas.tenant_id = run.tenant_id
LEFT JOIN LATERAL (
    SELECT id FROM procrastinate_jobs
    WHERE queueing_lock = run.tenant_id || '/' || run.run_id AND status = 'todo' LIMIT 1
) job ON true
WHERE job.id IS NULL AND CASE WHEN quotas.tenant_id IS NULL
    THEN %(usual_max_running)s::integer ELSE max_running END IS NULL
LIMIT %(limit)s
"""
"""Return queued runs that have no job, and wait for no other run of their tenant.

Jobs are taken in the order of their age, so such a run comes to be among the oldest at the latest
when it is its turn; looking at those alone costs the same however many wait. The runs of a tenant
that may have only so many at once are looked for by every process with each beat.
"""

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
        self._place = socket.gethostname(), os.getpid()
        self._drain_requested_at: datetime | None = None
        """Kept, in case the row was deleted by somebody who took this process for dead."""

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
            row = (worker_id, *self._place, self._drain_requested_at)
            beaten = await connection.exec_driver_sql(BEAT, row)
            self._drain_requested_at = beaten.scalar_one()
            rows = (await connection.exec_driver_sql(OWNED_BY, (worker_id,))).mappings().all()
        owned = {key_from_row(row): row for row in rows}
        requests = {key: cancel_request_from_row(row) for key, row in owned.items()}
        cancelled = {key: request for key, request in requests.items() if request is not None}
        draining = self._drain_requested_at is not None
        return Beat(cancelled=cancelled, owned=frozenset(owned), draining=draining)

    async def leave(self, worker_id: str) -> None:
        """Record that this worker ends.

        Raises:
            StoreUnavailableError: the database does not answer.
        """
        async with transaction(self._pool) as connection:
            await connection.exec_driver_sql(LEAVE, (worker_id,))


async def any_taking(pool: Pool, *, stale_seconds: float) -> bool:
    """Tell whether any worker that takes runs has beaten lately, on the database's clock.

    Raises:
        StoreUnavailableError: the database does not answer.
    """
    async with transaction(pool) as connection:
        found = await connection.exec_driver_sql(ANY_TAKING, (stale_seconds,))
        return bool(found.scalar_one())


@dataclass(frozen=True, slots=True)
class WorkerState:
    """A process that executes runs, as the database knows it."""

    worker_id: str
    host: str | None
    pid: int | None
    started_at: datetime
    drain_requested_at: datetime | None
    """When somebody asked it to take no more runs; None if nobody has."""
    beat_at: datetime
    silent_seconds: float
    """How long ago its last beat was, on the database's clock."""
    runs: int
    """How many runs it executes."""


async def list_workers(pool: Pool) -> list[WorkerState]:
    """Return the workers there are.

    Raises:
        StoreUnavailableError: the database does not answer.
    """
    async with transaction(pool) as connection:
        rows = (await connection.exec_driver_sql(LIST)).mappings().all()
    return [WorkerState(**row) for row in rows]


async def request_drain(pool: Pool, worker_id: str) -> bool:
    """Ask a worker to take no more runs, which it sees with its next beat; False if it is unknown.

    Raises:
        StoreUnavailableError: the database does not answer.
    """
    async with transaction(pool) as connection:
        asked = await connection.exec_driver_sql(DRAIN, (worker_id,))
        return asked.one_or_none() is not None


@dataclass(slots=True, kw_only=True)
class StaleRunRecovery:
    """Puts back into the queue what would otherwise never be executed."""

    pool: Pool
    dispatch: QueueDispatch
    interval_seconds: float
    stale_seconds: float
    """How long a worker may be silent before its runs are taken from it at the latest."""
    max_attempts: int
    """How often a run may be lost in a row; one that fails when it is taken need not wait."""
    worker_id: str | None = None
    """Of the process that looks; None if it does not beat itself."""
    usual_max_running: int | None = None
    """How many runs tenants without a quota may have at once."""
    observers: RunObservers = field(default_factory=RunObservers)
    """Told of the runs that end here: those that a deadline ends before anybody begins them."""
    clock: Callable[[], float] = time.monotonic
    _watch: SilenceWatch = field(init=False)

    def __post_init__(self) -> None:
        """Begin with nothing seen."""
        self._watch = SilenceWatch(
            interval_seconds=self.interval_seconds,
            stale_seconds=self.stale_seconds,
            own=self.worker_id,
        )

    async def run(self) -> None:
        """Look again and again; a database that is away is tried again the next time."""
        away = False
        for look in itertools.count():
            try:
                await self.recover(only_silent=look % LOOKS_PER_BEAT > 0)
                away = False
            except StoreUnavailableError:
                self._watch.interrupted()
                if not away:
                    log.warning("recovery.database_away")
                away = True
            began = self.clock()
            await asyncio.sleep(self._watch.look_seconds)
            if self.clock() - began > 2 * self.interval_seconds + 0.5:
                self._watch.interrupted()  # this process was frozen, or far too busy

    async def recover(self, *, only_silent: bool = False) -> Sequence[RunKey]:
        """Put back everything there is; return what got a job.

        With ``only_silent`` nothing is looked for unless a worker has fallen silent.

        Raises:
            StoreUnavailableError: the database does not answer.
        """
        silent = await self._silent()
        if only_silent and not silent:
            return ()
        found: list[RunKey] = []
        for take in (partial(self._take_lost, silent), self._take_forgotten, take_due):
            while True:
                async with transaction(self.pool) as connection:
                    taken = await take(connection)
                    await self.dispatch.defer(connection, taken)
                found.extend(taken)
                if len(taken) < BATCH:
                    break
        while await self._halt_overdue() == BATCH:
            pass
        if found:
            log.warning("runs.recovered", count=len(found))
        return found

    async def _halt_overdue(self) -> int:
        async with transaction(self.pool) as connection:
            ended = await halt_overdue(connection, BATCH)
        for run, snapshot in ended:
            self.observers.ended(run, snapshot)
        return len(ended)

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
        """Return queued runs whose job was lost, and since when they could have been begun."""
        await connection.exec_driver_sql(DELETE_STALLED_JOBS, (QUEUE, self.stale_seconds))
        looking = {
            "stale_seconds": self.stale_seconds,
            "usual_max_running": self.usual_max_running,
            "oldest": OLDEST,
            "limit": BATCH,
        }
        return _places((await connection.exec_driver_sql(FORGOTTEN, looking)).all())


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


async def take_due(connection: AsyncConnection) -> Mapping[RunKey, datetime]:
    """Queue runs that have waited for an approval for as long as they may."""
    return _places((await connection.exec_driver_sql(WAKE_DUE, (BATCH,))).all())


def _places(rows: Sequence[Any]) -> Mapping[RunKey, datetime]:
    found = {RunKey(row.tenant_id, row.run_id): row.queued_at for row in rows}
    return {key: found[key] for key in sorted(found)}
