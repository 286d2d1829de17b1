"""Starts the runs of schedules that are due.

Every process that executes runs searches the table when a schedule is due; the statement that looks
for work at each heartbeat returns when that is. Locked rows belong to other processes. One
transaction creates the run and advances its schedule, so neither a crash nor a second process
starts a run twice or loses one.

A batch starts all runs that nothing restricts with a few statements. The other schedules, such as
those of tenants with a quota, are fired one by one, and the tenants take turns. A schedule whose
run was rejected has an error. It is retried at intervals, and other schedules do not wait for it.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Final

import structlog
from sqlalchemy import func, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from caseworker.features.schedules.cron_times import due
from caseworker.features.schedules.postgres import moment, schedule_named, schedule_of, schedules
from caseworker.features.schedules.schedule import Overlap, Schedule
from caseworker.platform.caller import DEFAULT_TENANT
from caseworker.platform.errors import StoreUnavailableError
from caseworker.platform.fair_slots import TENANT
from caseworker.platform.postgres.engines import Engines, transaction
from caseworker.platform.postgres.json_text import dump
from caseworker.platform.postgres.locks import LOCK_TENANT
from caseworker.runs.accept.postgres.batch_accept import ACCEPT_QUEUED, RunInsert
from caseworker.runs.accept.postgres.batch_accept import UNLIMITED as UNLIMITED_QUEUE
from caseworker.runs.errors import QueueFullError, QuotaExceededError, RunConflictError
from caseworker.runs.execute.postgres.runs import StoreLimits, accept_in, cancel_in
from caseworker.runs.observers import RunObservers
from caseworker.runs.postgres.queue_jobs import defer_runs
from caseworker.runs.postgres.rows import Row, accepted_run
from caseworker.runs.postgres.tables import of_run, runs
from caseworker.runs.quotas import UNLIMITED
from caseworker.runs.run import TERMINAL, CancelRequest, NewRun, RunKey, RunStatus

log = structlog.get_logger(__name__)

BATCH: Final = 200
"""Maximum number of schedules per transaction."""

ALONE_AT_ONCE: Final = 2
"""Maximum number of schedules that a process fires concurrently, outside of batches. Each holds a
connection while it fires."""

RETRY_SECONDS: Final = 5.0
"""Interval, in seconds, at which rejected runs are retried."""

NEXT_DUE: Final = """
SELECT extract(epoch FROM next_at - now())::float8
FROM schedules WHERE next_at IS NOT NULL AND last_error IS NULL ORDER BY next_at LIMIT 1
"""
"""Return the seconds until the next schedule is due."""

_JOBS = "FROM procrastinate_jobs WHERE queue_name = 'schedules' AND status = 'todo'"

RETRY_DUE: Final = f"""
SELECT 0::float8 WHERE EXISTS (
    SELECT FROM schedules WHERE next_at <= now() AND last_error IS NOT NULL
) OR EXISTS (SELECT {_JOBS})
"""  # noqa: S608 - nothing of a caller's is in it, here and below
"""Return zero if there is anything for :meth:`ScheduleFiring.retry` to do."""

_IS_DUE = "next_at <= statement_timestamp() AND last_error IS NULL"

_BATCH = f"""
SELECT * FROM schedules
WHERE {_IS_DUE} AND (next_at, tenant_id, name) > (%s::timestamptz, %s, %s COLLATE "C")
ORDER BY next_at, tenant_id, name LIMIT {BATCH} FOR UPDATE SKIP LOCKED
"""  # noqa: S608

_FIRST: Final = (datetime.min.replace(tzinfo=UTC), "", "")
"""Position before all schedules."""

_AT_WORK = f"""
SELECT tenant_id, run_id FROM json_to_recordset(%s::json) AS last(tenant_id text, run_id text)
JOIN runs USING (tenant_id, run_id) WHERE status IN ({
    ", ".join(f"'{status.value}'" for status in sorted(set(RunStatus) - TERMINAL))
})
"""  # noqa: S608

_ADVANCE = """
UPDATE schedules SET next_at = fired.next_at, last_at = fired.last_at,
    last_run_id = fired.last_run_id, skipped = fired.skipped
FROM json_to_recordset(%s::json) AS fired(
    tenant_id text, name text, next_at timestamptz, last_at timestamptz, last_run_id text,
    skipped bigint
)
WHERE schedules.tenant_id = fired.tenant_id AND schedules.name = fired.name COLLATE "C"
"""

_ALONE = f"""
SELECT tenant_id, name FROM (
    SELECT tenant_id, name, row_number() OVER (PARTITION BY tenant_id ORDER BY random()) AS turn
    FROM schedules WHERE {{condition}}
) due ORDER BY turn, random() LIMIT {BATCH}
"""  # noqa: S608

_DUE_ALONE = _ALONE.format(condition=_IS_DUE)
_REJECTED = _ALONE.format(condition="next_at <= statement_timestamp() AND last_error IS NOT NULL")

_DROP_JOBS = f"DELETE {_JOBS}"
"""Delete the jobs with which processes of the previous release wake each other."""

_WHY_NOT: Mapping[type[Exception], str] = {
    QueueFullError: "The run queue is full.",
    QuotaExceededError: "A quota of the tenant is exceeded.",
    RunConflictError: "The run ID is already used for a different request.",
}
"""Messages for the errors that keep a schedule from starting its run."""

_UNEXPECTED = "The run could not be created."

Notification = Callable[[], None]
"""Notifies the observers of a run, after the commit."""


@dataclass(slots=True)
class ScheduleFiring:
    """Starts the runs of due schedules, in this process."""

    engines: Engines
    limits: StoreLimits
    observers: RunObservers = field(default_factory=RunObservers)
    """Observers to notify when a schedule creates a run, or cancels one that has not started
    yet."""
    _in_batches: bool = field(init=False)
    """Whether the default quota limits at most storage, which a batch checks itself, and the number
    of active runs, which claims check."""

    def __post_init__(self) -> None:
        """Find out whether batches may start any runs."""
        usual = self.limits.quota.for_tenant(DEFAULT_TENANT)
        self._in_batches = replace(usual, max_running=None) == UNLIMITED

    async def fire_due(self) -> None:
        """Fire all schedules that are due, except those whose runs were rejected before."""
        last: tuple[datetime, str, str] | None = _FIRST
        while last is not None and self._in_batches:
            last = await self._fire_batch(last)
        while await self._fire_alone(_DUE_ALONE):
            pass

    async def retry(self) -> None:
        """Retry some of the rejected runs, and delete the jobs of the previous release."""
        async with transaction(self.engines.work) as connection:
            await connection.exec_driver_sql(_DROP_JOBS)
        await self._fire_alone(_REJECTED)

    async def fire(self, tenant: str, name: str) -> bool:
        """Create the runs of a schedule that are due; return False if another process does.

        If a run is rejected, for example because the queue is full, its scheduled time and all
        later ones stay due, and the schedule stores the error.
        """
        async with transaction(self.engines.work) as connection:
            notifications = await self._fire(connection, tenant, name)
        for tell in notifications or ():
            tell()
        return notifications is not None

    async def _fire_batch(
        self, after: tuple[datetime, str, str]
    ) -> tuple[datetime, str, str] | None:
        """Start the unrestricted runs of the due schedules after a position, up to a batch.

        Returns the position of the last schedule of the batch; None if there are no more.
        """
        async with transaction(self.engines.work) as connection:
            rows = (await connection.exec_driver_sql(_BATCH, after)).mappings().all()
            fired = await self._advanced(connection, rows)
            accepted = await self._insert(connection, [new for _, new in fired if new is not None])
            advanced = [
                {
                    "tenant_id": schedule.tenant,
                    "name": schedule.name,
                    "next_at": schedule.next_at and schedule.next_at.isoformat(),
                    "last_at": schedule.last_at and schedule.last_at.isoformat(),
                    "last_run_id": schedule.last_run_id,
                    "skipped": schedule.skipped,
                }
                for schedule, new in fired
                if new is None or new.key in accepted
            ]
            if advanced:
                await connection.exec_driver_sql(_ADVANCE, (dump(advanced),))
        for _, new in fired:
            if new is not None and new.key in accepted:
                self.observers.accepted(accepted_run(new, None, accepted[new.key]))
        if len(rows) < BATCH:
            return None
        return rows[-1]["next_at"], rows[-1]["tenant_id"], rows[-1]["name"]

    async def _advanced(
        self, connection: AsyncConnection, rows: Sequence[Row]
    ) -> Sequence[tuple[Schedule, NewRun | None]]:
        """Return the schedules that a batch can fire, as they are then, each with its new run."""
        now = await moment(connection)
        last = [
            {"tenant_id": row["tenant_id"], "run_id": row["last_run_id"]}
            for row in rows
            if row["overlap"] != Overlap.ALLOW and row["last_run_id"] is not None
        ]
        at_work = {
            RunKey(row.tenant_id, row.run_id)
            for row in (await connection.exec_driver_sql(_AT_WORK, (dump(last),))).all()
        }
        fired: list[tuple[Schedule, NewRun | None]] = []
        for row in rows:
            try:
                schedule = schedule_of(row)
                plan = due(schedule.timing, next_at=row["next_at"], now=now)
                new = [schedule.run_at(instant) for instant in plan.instants]
            except Exception:  # noqa: S112 - it is fired alone, where the error is stored
                continue
            advanced = replace(schedule, next_at=plan.next_at)
            if not new:
                fired.append((advanced, None))
            elif len(new) == 1:
                advanced = replace(advanced, last_at=plan.instants[0])
                if RunKey(schedule.tenant, schedule.last_run_id or "") not in at_work:
                    fired.append((replace(advanced, last_run_id=new[0].key.run_id), new[0]))
                elif schedule.overlap is Overlap.SKIP:
                    fired.append((replace(advanced, skipped=schedule.skipped + 1), None))
        return fired

    async def _insert(
        self, connection: AsyncConnection, new: Sequence[NewRun]
    ) -> Mapping[RunKey, datetime]:
        """Queue the runs that nothing restricts; return their times of creation."""
        if not new:
            return {}
        max_queued = self.limits.max_queued
        inserts = [
            RunInsert(each, None, max_stored_bytes=usual.max_stored_bytes).row
            for each in sorted(new, key=lambda each: each.key)
            for usual in (self.limits.quota.for_tenant(each.key.tenant),)
        ]
        parameters = (
            max_queued or 0,
            f"[{','.join(inserts)}]",
            UNLIMITED_QUEUE if max_queued is None else max_queued,
        )
        rows = (await connection.exec_driver_sql(ACCEPT_QUEUED, parameters)).all()
        return {RunKey(row.tenant_id, row.run_id): row.created_at for row in rows}

    async def _fire_alone(self, statement: str) -> bool:
        """Fire some schedules one by one; return whether any was fired."""
        async with transaction(self.engines.work) as connection:
            rows = (await connection.exec_driver_sql(statement)).all()
        waiting = deque((row.tenant_id, row.name) for row in rows)
        fired, lost = False, False

        async def work() -> None:
            nonlocal fired, lost
            while waiting:
                tenant, name = waiting.popleft()
                TENANT.set(tenant)
                try:
                    fired |= await self.fire(tenant, name)
                except StoreUnavailableError:
                    lost = True
                    return
                except Exception:
                    log.exception("schedule.failed", tenant=tenant, schedule=name)
                    await self._fail(tenant, name)
                    fired = True

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(ALONE_AT_ONCE, len(waiting))):
                tasks.create_task(work())
        if lost:
            raise StoreUnavailableError
        return fired

    async def _fail(self, tenant: str, name: str) -> None:
        """Store that a schedule failed for an unexpected reason, so that it is retried later."""
        failed = (
            update(schedules).where(schedule_named(tenant, name)).values(last_error=_UNEXPECTED)
        )
        async with transaction(self.engines.work) as connection:
            await connection.execute(failed)

    async def _fire(
        self, connection: AsyncConnection, tenant: str, name: str
    ) -> Sequence[Notification] | None:
        """Fire in this transaction; return notifications, or None if the schedule is not due."""
        is_due = schedules.c.next_at <= func.statement_timestamp()
        query = select(schedules).where(schedule_named(tenant, name), is_due)
        # A locked schedule is being fired or changed by another transaction.
        locked = await connection.execute(query.with_for_update(skip_locked=True))
        row = locked.mappings().one_or_none()
        if row is None:
            return None
        notifications: list[Notification] = []
        schedule = schedule_of(row)
        assert schedule.next_at is not None  # noqa: S101 - it is due
        plan = due(schedule.timing, next_at=schedule.next_at, now=await moment(connection))
        schedule = replace(schedule, next_at=plan.next_at, last_error=None)
        for instant in plan.instants:
            try:
                # A savepoint per instant: a rejected run must not undo the runs before it.
                async with connection.begin_nested():
                    schedule, more = await self._begin(connection, schedule, instant)
                notifications += more
            except tuple(_WHY_NOT) as error:
                schedule = replace(schedule, next_at=instant, last_error=_WHY_NOT[type(error)])
                break
        moved = ("next_at", "last_at", "last_run_id", "skipped", "last_error")
        changed = update(schedules).where(schedule_named(tenant, name))
        await connection.execute(changed.values({each: getattr(schedule, each) for each in moved}))
        return notifications

    async def _begin(
        self, connection: AsyncConnection, schedule: Schedule, instant: datetime
    ) -> tuple[Schedule, Sequence[Notification]]:
        """Accept the run of an instant, unless the overlap policy skips it; see :meth:`_fire`."""
        notifications: list[Notification] = []
        schedule = replace(schedule, last_at=instant)
        if schedule.overlap is not Overlap.ALLOW and schedule.last_run_id is not None:
            last = RunKey(schedule.tenant, schedule.last_run_id)
            if await _at_work(connection, last):
                if schedule.overlap is Overlap.SKIP:
                    return replace(schedule, skipped=schedule.skipped + 1), notifications
                # accept_in takes this lock before it locks rows; cancelling must do the same.
                await connection.exec_driver_sql(LOCK_TENANT, (schedule.tenant,))
                by = f"schedule {schedule.name}"
                request = CancelRequest(requested_by=by, reason="The next run is due.")
                stopped = await cancel_in(connection, last, request, self.limits)
                if stopped.run is not None and stopped.snapshot is not None:
                    notifications.append(
                        partial(self.observers.ended, stopped.run, stopped.snapshot)
                    )
        new = schedule.run_at(instant)
        accepted = await accept_in(connection, new, worker_id=None, limits=self.limits)
        if accepted.created:
            notifications.append(partial(self.observers.accepted, accepted.run))
            if accepted.run.status is RunStatus.QUEUED:
                await defer_runs(connection, {new.key: None})
            else:  # a pending cancel ended it at once
                notifications.append(partial(self.observers.ended, accepted.run, None))
        return replace(schedule, last_run_id=new.key.run_id), notifications


async def _at_work(connection: AsyncConnection, key: RunKey) -> bool:
    status = await connection.scalar(select(runs.c.status).where(of_run(runs, key)))
    return status is not None and status not in TERMINAL
