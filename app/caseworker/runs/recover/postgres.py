"""Workers (the processes that execute runs): heartbeats, and recovery of the runs of dead workers.

Every worker looks for stale runs itself instead of leaving that to a queue job. A worker whose
slots are full must still notice that another one died, and a recovery that is killed midway must
not block the next one.

In addition to its row, a live worker holds an advisory lock. The lock ends with its connection, so
a killed process no longer holds it. :mod:`caseworker.runs.recover.failure_detector` decides which
workers count as silent.

Recovery never waits for a row lock, so it disturbs neither other recoveries nor live workers. Rows
that are locked now are checked again next time. A worker that was only frozen has lost its runs
when it resumes: the fencing token of the next claim rejects its writes.

See docs/internals.md, "Recovery".
"""

import asyncio
import json
import os
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import Any

import structlog
from psycopg import AsyncConnection as AsyncPgConnection
from sqlalchemy.ext.asyncio import AsyncConnection

from caseworker.platform.caller import DEFAULT_TENANT
from caseworker.platform.errors import StoreUnavailableError
from caseworker.platform.postgres.audit import Act, record
from caseworker.platform.postgres.engines import Engines, Pool, transaction
from caseworker.platform.postgres.locks import HOLD_WORKER_LIFE, TRY_WORKER_LIFE
from caseworker.runs.execute.postgres.runs import halt_overdue, stopped_started
from caseworker.runs.observers import RunObservers
from caseworker.runs.ports import Beat
from caseworker.runs.postgres.queue_jobs import defer_runs
from caseworker.runs.postgres.rows import cancel_request_from_row
from caseworker.runs.postgres.run_statements import OWNED, OWNED_BY, TAKE_LOST
from caseworker.runs.recover.failure_detector import SilenceWatch, Silent
from caseworker.runs.recover.heartbeat import Search, look_statement
from caseworker.runs.run import RunKey

log = structlog.get_logger(__name__)

Take = Callable[[AsyncConnection], Awaitable[Mapping[RunKey, datetime]]]
"""Function that finds runs to queue, with the earliest start time of each."""

BATCH = 200
"""Maximum number of runs per transaction; further runs are processed in further transactions."""

OLDEST = 1000
"""Maximum number of queued runs, oldest first, that are checked for a missing job."""

BEAT = """
INSERT INTO workers (worker_id, host, pid, address, drain_requested_at)
VALUES (%s, %s, %s, %s::jsonb, %s)
ON CONFLICT (worker_id) DO UPDATE SET beat_at = clock_timestamp()
RETURNING drain_requested_at
"""

LEAVE = "DELETE FROM workers WHERE worker_id = %s"

ANY_WORKER_ACCEPTS_RUNS = """
SELECT EXISTS (
    SELECT FROM workers WHERE drain_requested_at IS NULL
        AND beat_at > statement_timestamp() - make_interval(secs => %s::float8)
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
    ELSE {TRY_WORKER_LIFE} END
FOR UPDATE OF workers SKIP LOCKED
"""  # noqa: S608
"""Return which of the given silent workers are dead: their last heartbeat is still the same.

A worker that has been silent for less than ``stale_seconds`` must also hold no connection.
"""

DELETE_DEAD_WORKERS = f"""
DELETE FROM workers w WHERE worker_id = ANY(%s) AND NOT EXISTS (
    SELECT FROM runs WHERE runs.worker_id = w.worker_id AND status IN {OWNED}
)
"""  # noqa: S608
"""Delete the rows of dead workers that own no runs. While a worker owns runs, its last heartbeat
shows how long they were executed."""

FORGOTTEN = """
SELECT run.tenant_id, run_id, queued_at FROM (
    SELECT tenant_id, run_id, queued_at FROM runs
    WHERE status = 'queued'
        AND queued_at < statement_timestamp() - make_interval(secs => %(stale_seconds)s::float8)
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
"""Return queued runs that have no job and do not wait for another run of their tenant.

Only the oldest queued runs are checked, so the duration is independent of the queue length. Workers
take jobs oldest first, so a run without a job eventually is among the oldest. Runs with a
concurrency key, or of tenants with a limit, may have to wait without a job. Every worker tries to
claim those at each heartbeat.
"""

AWAIT_CLAIMS = "SELECT caseworker_await_claims()"
"""Let claims look at all tenants with queued runs, because the default quota may have changed."""

DELETE_STALLED_JOBS = """
DELETE FROM procrastinate_jobs WHERE id IN (
    SELECT job.id FROM procrastinate_jobs job
    LEFT JOIN procrastinate_workers worker ON worker.id = job.worker_id
    WHERE job.status = 'doing'
        AND (worker.id IS NULL OR worker.last_heartbeat
            < statement_timestamp() - make_interval(secs => %s::float8))
    FOR UPDATE OF job SKIP LOCKED
)
"""
"""Delete jobs that a dead worker took without finishing them. Their work gets new jobs."""

STALLED_AFTER = 3
"""Factor by which a queue worker's time to count as dead exceeds that of a process. It sends fewer
heartbeats, because only the deletion of its unfinished jobs depends on them."""

WAKE_DUE = """
WITH due AS MATERIALIZED (
    SELECT tenant_id, run_id FROM runs
    WHERE status = 'waiting' AND queued_at <= statement_timestamp()
    ORDER BY queued_at LIMIT %s FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE runs SET status = 'queued', queued_at = clock_timestamp()
FROM due WHERE runs.tenant_id = due.tenant_id AND runs.run_id = due.run_id
RETURNING runs.tenant_id, runs.run_id, runs.queued_at
"""
"""Queue waiting runs whose approval has timed out or whose deadline has passed."""


class PostgresWorkers:
    """Stores heartbeats in Postgres over a dedicated connection."""

    def __init__(self, engines: Engines, address: Mapping[str, Any] | None = None) -> None:
        """Publish ``address``, where this process receives forwarded requests, if it does."""
        self._pulse = engines.pulse
        published = None if address is None else json.dumps(address)
        self._place = socket.gethostname(), os.getpid(), published
        self._drain_requested_at: datetime | None = None
        """Restored if another process considered this one dead and deleted its row."""
        self._locked: tuple[object, str] | None = None
        """The connection that holds the life lock, and the worker."""

    async def beat(self, worker_id: str) -> Beat:
        """Record a heartbeat; return the worker's runs, their cancel requests and the drain flag.

        Raises:
            StoreUnavailableError: the database does not respond.
        """
        rows = await self._pulse.use(partial(self._beat, worker_id))
        owned = {RunKey(row["tenant_id"], row["run_id"]): row for row in rows}
        requests = {key: cancel_request_from_row(row) for key, row in owned.items()}
        cancelled = {key: request for key, request in requests.items() if request is not None}
        draining = self._drain_requested_at is not None
        return Beat(cancelled=cancelled, owned=frozenset(owned), draining=draining)

    async def _beat(self, worker_id: str, connection: AsyncPgConnection[Any]) -> Sequence[Any]:
        # The lock belongs to the connection, so a new connection takes it again.
        if self._locked != (connection, worker_id):
            await connection.execute(HOLD_WORKER_LIFE, (worker_id,))
            self._locked = connection, worker_id
        row = (worker_id, *self._place, self._drain_requested_at)
        beaten = await (await connection.execute(BEAT, row, prepare=True)).fetchall()
        self._drain_requested_at = beaten[0]["drain_requested_at"]
        # The heartbeat is committed, whatever happens to the next statement.
        owned = await connection.execute(OWNED_BY, (worker_id,), prepare=True)
        return await owned.fetchall()

    async def stop_accepting(self, worker_id: str) -> None:
        """Record that this worker accepts no more runs.

        Raises:
            StoreUnavailableError: the database does not respond.
        """
        await self._pulse.use(lambda connection: connection.execute(DRAIN, (worker_id,)))

    async def leave(self, worker_id: str) -> None:
        """Record that this worker shuts down.

        Raises:
            StoreUnavailableError: the database does not respond.
        """
        await self._pulse.use(lambda connection: connection.execute(LEAVE, (worker_id,)))


async def any_worker_accepts_runs(pool: Pool, *, stale_seconds: float) -> bool:
    """Return whether any worker that accepts runs has sent a heartbeat recently.

    The database's clock decides: the heartbeat must be younger than ``stale_seconds``.

    Raises:
        StoreUnavailableError: the database does not respond.
    """
    async with transaction(pool) as connection:
        rows = await connection.exec_driver_sql(ANY_WORKER_ACCEPTS_RUNS, (stale_seconds,))
        return bool(rows.scalar_one())


@dataclass(frozen=True, slots=True)
class WorkerState:
    """The state of a worker, as stored in the database."""

    worker_id: str
    host: str | None
    pid: int | None
    started_at: datetime
    drain_requested_at: datetime | None
    """Time at which an operator asked the worker to drain; None if it was not asked."""
    beat_at: datetime
    silent_seconds: float
    """Seconds since the worker's last heartbeat, on the database's clock."""
    runs: int
    """Number of runs that the worker executes."""


async def list_workers(pool: Pool) -> list[WorkerState]:
    """Return the state of each worker.

    Raises:
        StoreUnavailableError: the database does not respond.
    """
    async with transaction(pool) as connection:
        rows = (await connection.exec_driver_sql(LIST)).mappings().all()
    return [WorkerState(**row) for row in rows]


async def request_drain(pool: Pool, worker_id: str) -> bool:
    """Ask a worker to accept no more runs; return False if it is unknown.

    The worker sees the request at its next heartbeat.

    Raises:
        StoreUnavailableError: the database does not respond.
    """
    async with transaction(pool) as connection:
        changed = await connection.exec_driver_sql(DRAIN, (worker_id,))
        if changed.one_or_none() is None:
            return False
        await record(connection, DEFAULT_TENANT, Act.DRAIN_REQUESTED, worker_id)
        return True


@dataclass(slots=True, kw_only=True)
class StaleRunRecovery:
    """Requeues runs that would otherwise never be executed."""

    engines: Engines
    interval_seconds: float
    stale_seconds: float
    """Seconds without a heartbeat after which a connected worker's runs are recovered too."""
    max_attempts: int
    """Number of deaths of processes at which a run fails. A run at that limit is queued again
    without delay."""
    worker_id: str | None = None
    """ID of the worker that recovers runs; None if this process sends no heartbeats."""
    usual_max_running: int | None = None
    """Maximum number of active runs for tenants without a quota of their own; None means no
    limit."""
    observers: RunObservers = field(default_factory=RunObservers)
    """Observers to notify of runs that recovery ends, because their deadline passed before they
    started."""
    runs_due: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a queued run may start. A notification usually comes first."""
    searches: Sequence[Search] = ()
    """Searches for other work, such as jobs and due schedules."""
    suspects_wait: Callable[[bool], None] = lambda _: None
    """Called with whether runs wait for a process in which they run alone."""
    end: Callable[[RunKey], Awaitable[None]]
    """Ends a run that has started, was stopped, and is executed by no process."""
    clock: Callable[[], float] = time.monotonic
    _watch: SilenceWatch = field(init=False)
    _look_statement: str = field(init=False)
    _awaits_claims: bool = False

    def __post_init__(self) -> None:
        """Start without knowing of any heartbeats."""
        self._look_statement = look_statement(self.searches)
        self._watch = SilenceWatch(
            interval_seconds=self.interval_seconds,
            stale_seconds=self.stale_seconds,
            own_id=self.worker_id,
        )

    async def run(self) -> None:
        """Recover runs at intervals; after a database outage, continue at the next interval."""
        away, thorough_at = False, self.clock()
        while True:
            try:
                thorough = self.clock() >= thorough_at
                await self.recover(thorough=thorough)
                if thorough:
                    thorough_at = self.clock() + self.stale_seconds
                away = False
            except StoreUnavailableError:
                self._watch.interrupted()
                if not away:
                    log.warning("recovery.database_away")
                away = True
            began = self.clock()
            await asyncio.sleep(self._watch.look_seconds)
            if self.clock() - began > 2 * self.interval_seconds + 0.5:
                self._watch.interrupted()  # this process was frozen or overloaded

    async def recover(self, *, thorough: bool = True) -> Sequence[RunKey]:
        """Requeue all stale runs and end overdue runs; return the runs that got a job.

        Unless ``thorough``, only do the work that a single statement finds. The rest is overdue by
        ``stale_seconds`` in any case.

        Raises:
            StoreUnavailableError: the database does not respond.
        """
        if self._watch.suspects and not await self.engines.work.can_grow():
            self._watch.interrupted()  # a living worker may have no connection either
        began = self.clock()
        look = await self.engines.look.use(self._look)
        beats = (look["beats"] or {}).items()
        last = {worker_id: datetime.fromisoformat(beat) for worker_id, beat in beats}
        silent = self._watch.look(last, began=began, ended=self.clock())
        if not self._awaits_claims:
            async with transaction(self.engines.work) as connection:
                await connection.exec_driver_sql(AWAIT_CLAIMS)
            self._awaits_claims = True
        self._wake(look["run_seconds"], self.runs_due)
        for number, search in enumerate(self.searches):
            self._wake(look[f"search_{number}"], search.due)
        self.suspects_wait(look["suspects"])
        overdue = -(look["run_seconds"] or 0.0) > self.stale_seconds
        sweeps = (
            (silent or (thorough and look["running"]), partial(self._take_lost, silent)),
            (thorough and (overdue or look["doing"]), self._take_forgotten),
            (look["due"], take_due),
        )
        recovered: list[RunKey] = []
        for needed, take in sweeps:
            if needed:
                recovered.extend(await self._requeued(take))
        if look["stopped"] or look["due"]:
            await self._end_stopped()
        if recovered:
            log.warning("runs.recovered", count=len(recovered))
        return recovered

    async def _requeued(self, take: Take) -> Sequence[RunKey]:
        """Queue the runs that ``take`` finds, in batches; return them."""
        recovered: list[RunKey] = []
        while True:
            async with transaction(self.engines.work) as connection:
                places = await take(connection)
                await defer_runs(connection, places)
            recovered.extend(places)
            if len(places) < BATCH:
                return recovered

    async def _end_stopped(self) -> None:
        """End queued runs that are overdue, and have this process end those that have started."""
        while await self._halt_overdue() == BATCH:
            pass
        async with transaction(self.engines.work) as connection:
            started = await stopped_started(connection, BATCH)
        for key in started:
            await self.end(key)

    async def _halt_overdue(self) -> int:
        async with transaction(self.engines.work) as connection:
            ended = await halt_overdue(connection, BATCH)
        for run, snapshot in ended:
            self.observers.ended(run, snapshot)
        return len(ended)

    async def _look(self, connection: AsyncPgConnection[Any]) -> Mapping[str, Any]:
        rows = await connection.execute(self._look_statement, prepare=True)
        (row,) = await rows.fetchall()
        return row  # type: ignore[no-any-return]

    def _wake(self, seconds: float | None, event: asyncio.Event) -> None:
        """Set ``event`` in ``seconds``, unless the next read comes first."""
        if seconds is not None and seconds < self.interval_seconds:
            # A timer may end a fraction of a millisecond early, when no work is due yet.
            asyncio.get_running_loop().call_later(max(0, seconds) + 0.001, event.set)

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
        """Return queued runs whose job was lost, with the time from which they could start."""
        stalled_seconds = STALLED_AFTER * self.stale_seconds
        await connection.exec_driver_sql(DELETE_STALLED_JOBS, (stalled_seconds,))
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
    """Requeue the runs of dead workers; return the earliest restart time of each.

    A run that was lost more than once is delayed, in case the run itself makes its workers crash.
    """
    judged = (
        [each.worker_id for each in silent],
        [each.beat_at for each in silent],
        [each.exceeded_stale_timeout for each in silent],
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
    """Queue waiting runs whose time limit for an approval has passed.

    Returns the earliest start time of each run.
    """
    return _places((await connection.exec_driver_sql(WAKE_DUE, (BATCH,))).all())


def _places(rows: Sequence[Any]) -> Mapping[RunKey, datetime]:
    queued_at = {RunKey(row.tenant_id, row.run_id): row.queued_at for row in rows}
    return {key: queued_at[key] for key in sorted(queued_at)}
