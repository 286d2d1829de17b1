"""Storage for schedules in Postgres, and the transaction that starts their runs."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Insert,
    Integer,
    Table,
    Text,
    Update,
    Uuid,
    delete,
    func,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection

from caseworker.features.schedules.schedule import (
    NewSchedule,
    Overlap,
    Schedule,
    ScheduledRun,
    ScheduleNotFoundError,
    TooManySchedulesError,
)
from caseworker.features.schedules.timing import CatchUp, Timing, due
from caseworker.platform.postgres.audit import Act, record
from caseworker.platform.postgres.engines import Engines, transaction
from caseworker.runs.errors import QueueFullError, RunConflictError
from caseworker.runs.observing import RunObservers
from caseworker.runs.paging import Page
from caseworker.runs.postgres.dispatch import QueuedJob, defer, defer_runs
from caseworker.runs.postgres.quotas import LOCK, quota_of, storing
from caseworker.runs.postgres.rows import (
    Row,
    decode_cursor,
    id_in,
    page_of,
    request_from_json,
    request_to_json,
)
from caseworker.runs.postgres.runs import StoreLimits, accept_in, cancel_in
from caseworker.runs.postgres.tables import INSTANT, columns, metadata, of_run, runs
from caseworker.runs.quotas import QuotaExceededError
from caseworker.runs.run import TERMINAL, CancelRequest, RunKey, RunStatus, Webhook

schedules = Table(
    "schedules",
    metadata,
    Column("tenant_id", Text, primary_key=True),
    Column("name", Text(collation="C"), primary_key=True),
    Column("schedule_id", Uuid, nullable=False),
    *columns(Text, "cron timezone catch_up overlap request_hash", nullable=False),
    Column("max_catch_up", Integer, nullable=False),
    Column("paused", Boolean, nullable=False),
    Column("sent", JSON, nullable=False),
    *columns(JSONB, "request metadata", nullable=False),
    Column("webhook", JSONB(none_as_null=True)),
    *columns(INSTANT, "next_at last_at"),
    *columns(Text, "last_run_id last_error"),
    Column("skipped", BigInteger, nullable=False),
    *columns(INSTANT, "created_at updated_at", nullable=False),
)

SCHEDULES_QUEUE = "schedules"
FIRE = "fire_schedule"

_KEPT = ("schedule_id", "next_at", "last_at", "last_run_id", "skipped", "last_error")

OVERDUE = """EXISTS (
    SELECT FROM schedules WHERE next_at < now() - make_interval(secs => %(seconds)s::float8)
)"""

_FORGOTTEN = """
SELECT tenant_id, name, next_at FROM (
    SELECT tenant_id, name, next_at FROM schedules
    WHERE next_at < statement_timestamp() - make_interval(secs => %s::float8)
    ORDER BY next_at
) due LEFT JOIN LATERAL (
    SELECT id FROM procrastinate_jobs WHERE status = 'todo' AND queueing_lock = ('schedule/'
        || due.tenant_id || '/' || due.name || '/' || extract(epoch FROM due.next_at)::bigint)
        COLLATE "default"
    LIMIT 1
) job ON true
WHERE job.id IS NULL LIMIT 200
"""
"""Find due schedules whose wake-up job was lost. With the collation of a schedule's name, the index
of the locks would not be used."""

_WHY_NOT: Mapping[type[Exception], str] = {
    QueueFullError: "The run queue is full.",
    QuotaExceededError: "A quota of the tenant is exceeded.",
    RunConflictError: "The run ID is already used for a different request.",
}
"""Messages for the errors that keep a schedule from starting its run."""


@dataclass(frozen=True, slots=True)
class PostgresSchedules:
    """Stores schedules in Postgres; see :mod:`caseworker.features.schedules.schedule`."""

    engines: Engines
    limits: StoreLimits
    max_schedules: int
    """Maximum number of schedules per tenant."""
    observers: RunObservers = field(default_factory=RunObservers)
    """Observers to notify when a schedule creates a run, or cancels one that has not started
    yet."""

    async def put(self, new: NewSchedule) -> tuple[Schedule, bool]:
        """Create or update a schedule; return it, and whether it was created.

        If the timing changes, the new timing applies from now on. Otherwise, runs that are already
        due stay due.

        Raises:
            TooManySchedulesError: the tenant has reached its limit.
        """
        async with transaction(self.engines.work) as connection:
            lock = text(
                "SELECT pg_advisory_xact_lock(hashtextextended('schedules ' || :tenant, 0))"
            )
            await connection.execute(lock, {"tenant": new.tenant})
            found = await _locked(connection, new.tenant, new.name)
            if found is None and await _count(connection, new.tenant) >= self.max_schedules:
                raise TooManySchedulesError
            values = {**_values(new), "next_at": await _next_at(connection, new, found)}
            store: Insert | Update
            if found is None:
                store = insert(schedules).values(**values)
            else:
                values |= {"updated_at": func.clock_timestamp(), "last_error": None}
                store = update(schedules).where(_is(new.tenant, new.name)).values(**values)
            quota = await quota_of(connection, new.tenant, self.limits.quota)
            async with storing(connection, new.tenant, quota):
                row = (await connection.execute(store.returning(schedules))).mappings().one()
            await record(connection, new.tenant, Act.SCHEDULE_SET, new.name)
            await self._wake(connection, row)
        return _schedule(row), found is None

    async def get(self, tenant: str, name: str) -> Schedule:
        """Return the schedule with this name.

        Raises:
            ScheduleNotFoundError: the schedule does not exist.
        """
        query = select(schedules).where(_is(tenant, name))
        async with transaction(self.engines.work, tenant) as connection:
            row = (await connection.execute(query)).mappings().one_or_none()
        if row is None:
            raise ScheduleNotFoundError(name)
        return _schedule(row)

    async def find(self, tenant: str, *, limit: int, cursor: str | None) -> Page[Schedule]:
        """Return a page of schedules, ordered by name."""
        query = select(schedules).where(schedules.c.tenant_id == tenant)
        if cursor is not None:
            query = query.where(schedules.c.name > decode_cursor("schedules", cursor, id_in))
        query = query.order_by(schedules.c.name).limit(limit + 1)
        async with transaction(self.engines.work, tenant) as connection:
            rows = (await connection.execute(query)).mappings().all()
        return page_of("schedules", rows, limit, lambda row: row["name"], _schedule)

    async def pause(self, tenant: str, name: str, *, paused: bool) -> Schedule:
        """Pause or resume a schedule. Scheduled times that pass while it is paused start no run.

        Raises:
            ScheduleNotFoundError: the schedule does not exist.
        """
        async with transaction(self.engines.work) as connection:
            found = await _locked(connection, tenant, name)
            if found is None:
                raise ScheduleNotFoundError(name)
            if found.paused is paused:
                return found
            next_at = None if paused else found.timing.next_after(await _now(connection))
            changed = update(schedules).where(_is(tenant, name)).returning(schedules)
            changed = changed.values(paused=paused, next_at=next_at, last_error=None)
            row = (await connection.execute(changed)).mappings().one()
            await record(connection, tenant, Act.SCHEDULE_SET, name)
            await self._wake(connection, row)
        return _schedule(row)

    async def delete(self, tenant: str, name: str) -> None:
        """Delete a schedule. The runs that it created are unaffected.

        Raises:
            ScheduleNotFoundError: the schedule does not exist.
        """
        gone = delete(schedules).where(_is(tenant, name)).returning(schedules.c.name)
        async with transaction(self.engines.work, tenant) as connection:
            if (await connection.execute(gone)).one_or_none() is None:
                raise ScheduleNotFoundError(name)
            await record(connection, tenant, Act.SCHEDULE_DELETED, name)

    async def fire(self, tenant: str, name: str) -> None:
        """Create the runs that are due, advance the schedule, and queue its next wake-up.

        A single transaction does all of this. If a run is rejected, for example because the queue
        is full, its scheduled time and all later ones stay due. :meth:`rescue` then wakes the
        schedule again.
        """
        async with transaction(self.engines.work) as connection:
            happened = await self._fire(connection, tenant, name)
        for tell in happened:
            tell()

    async def _fire(
        self, connection: AsyncConnection, tenant: str, name: str
    ) -> Sequence[Callable[[], None]]:
        """Fire in this transaction; return callbacks that notify the observers after the commit."""
        happened: list[Callable[[], None]] = []
        is_due = schedules.c.next_at <= func.statement_timestamp()
        query = select(schedules).where(_is(tenant, name), is_due)
        # A locked schedule is being fired or changed by another transaction.
        locked = await connection.execute(query.with_for_update(skip_locked=True))
        row = locked.mappings().one_or_none()
        if row is None:
            return happened
        schedule = _schedule(row)
        assert schedule.next_at is not None  # noqa: S101 - it is due
        now = await _now(connection)
        plan = due(schedule.timing, next_at=schedule.next_at, now=now)
        schedule = replace(schedule, next_at=plan.next_at, last_error=None)
        for instant in plan.instants:
            try:
                # A savepoint per instant: a rejected run must not undo the runs before it.
                async with connection.begin_nested():
                    schedule, more = await self._begin(connection, schedule, instant)
                happened += more
            except tuple(_WHY_NOT) as error:
                schedule = replace(schedule, next_at=instant, last_error=_WHY_NOT[type(error)])
                break
        changed = update(schedules).where(_is(tenant, name)).returning(schedules)
        moved = ("next_at", "last_at", "last_run_id", "skipped", "last_error")
        changed = changed.values({each: getattr(schedule, each) for each in moved})
        row = (await connection.execute(changed)).mappings().one()
        if schedule.last_error is None:
            await self._wake(connection, row)
        return happened

    async def _begin(
        self, connection: AsyncConnection, schedule: Schedule, instant: datetime
    ) -> tuple[Schedule, Sequence[Callable[[], None]]]:
        """Accept the run of an instant, unless the overlap policy skips it; see :meth:`_fire`."""
        happened: list[Callable[[], None]] = []
        schedule = replace(schedule, last_at=instant)
        if schedule.overlap is not Overlap.ALLOW and schedule.last_run_id is not None:
            last = RunKey(schedule.tenant, schedule.last_run_id)
            if await _at_work(connection, last):
                if schedule.overlap is Overlap.SKIP:
                    return replace(schedule, skipped=schedule.skipped + 1), happened
                # accept_in takes this lock before it locks rows; cancelling must do the same.
                await connection.exec_driver_sql(LOCK, (schedule.tenant,))
                by = f"schedule {schedule.name}"
                request = CancelRequest(requested_by=by, reason="The next run is due.")
                stopped = await cancel_in(connection, last, request, self.limits)
                if stopped.run is not None and stopped.snapshot is not None:
                    happened.append(partial(self.observers.ended, stopped.run, stopped.snapshot))
        new = schedule.run_at(instant)
        accepted = await accept_in(connection, new, worker_id=None, limits=self.limits)
        if accepted.created:
            happened.append(partial(self.observers.accepted, accepted.run))
            if accepted.run.status is RunStatus.QUEUED:
                await defer_runs(connection, {new.key: None})
            else:  # a pending cancel ended it at once
                happened.append(partial(self.observers.ended, accepted.run, None))
        return replace(schedule, last_run_id=new.key.run_id), happened

    async def rescue(self, late_seconds: float) -> int:
        """Queue a wake-up for schedules overdue by ``late_seconds``; return their number."""
        async with transaction(self.engines.work) as connection:
            found = (await connection.exec_driver_sql(_FORGOTTEN, (late_seconds,))).mappings().all()
            for row in found:
                await self._wake(connection, row)
        return len(found)

    async def _wake(self, connection: AsyncConnection, row: Row) -> None:
        """Queue a wake-up for a schedule's next instant; a superfluous wake-up has no effect."""
        at: datetime | None = row["next_at"]
        if at is None:
            return
        tenant, name = row["tenant_id"], row["name"]
        job = QueuedJob(
            queue=SCHEDULES_QUEUE,
            task=FIRE,
            lock=f"schedule/{tenant}/{name}/{round(at.timestamp())}",
            arguments={"tenant": tenant, "name": name},
            at=at,
        )
        await defer(connection, [job])


async def _locked(connection: AsyncConnection, tenant: str, name: str) -> Schedule | None:
    query = select(schedules).where(_is(tenant, name)).with_for_update()
    row = (await connection.execute(query)).mappings().one_or_none()
    return None if row is None else _schedule(row)


async def _count(connection: AsyncConnection, tenant: str) -> int:
    counted = select(func.count()).select_from(schedules).where(schedules.c.tenant_id == tenant)
    return await connection.scalar(counted) or 0


async def _now(connection: AsyncConnection) -> datetime:
    now: datetime = (await connection.execute(select(func.clock_timestamp()))).scalar_one()
    return now


async def _next_at(
    connection: AsyncConnection, new: NewSchedule, found: Schedule | None
) -> datetime | None:
    """Return the next instant of a new or changed schedule; an instant that is due stays due."""
    if new.paused:
        return None
    timing = (new.timing.cron, new.timing.timezone)
    if found and found.next_at and timing == (found.timing.cron, found.timing.timezone):
        return found.next_at
    return new.timing.next_after(await _now(connection))


async def _at_work(connection: AsyncConnection, key: RunKey) -> bool:
    status = await connection.scalar(select(runs.c.status).where(of_run(runs, key)))
    return status is not None and status not in TERMINAL


def _is(tenant: str, name: str) -> Any:
    return (schedules.c.tenant_id == tenant) & (schedules.c.name == name)


def _values(new: NewSchedule) -> dict[str, Any]:
    run, timing, hook = new.run, new.timing, new.run.webhook
    return {
        "tenant_id": new.tenant,
        "name": new.name,
        "cron": timing.cron,
        "timezone": timing.timezone,
        "catch_up": timing.catch_up.value,
        "max_catch_up": timing.max_catch_up,
        "overlap": new.overlap.value,
        "paused": new.paused,
        "sent": dict(run.sent),
        "request": request_to_json(run.request),
        "request_hash": run.request_hash,
        "metadata": dict(run.metadata),
        "webhook": None if hook is None else {"url": hook.url, "events": list(hook.events)},
    }


def _schedule(row: Row) -> Schedule:
    hook = row["webhook"]
    run = ScheduledRun(
        sent=row["sent"],
        request=request_from_json(row["request"]),
        request_hash=row["request_hash"],
        metadata=row["metadata"],
        webhook=None if hook is None else Webhook(hook["url"], tuple(hook["events"])),
    )
    timing = Timing(row["cron"], row["timezone"], CatchUp(row["catch_up"]), row["max_catch_up"])
    kept: dict[str, Any] = {name: row[name] for name in _KEPT}
    kept["schedule_id"] = str(kept["schedule_id"])
    return Schedule(
        tenant=row["tenant_id"],
        name=row["name"],
        timing=timing,
        run=run,
        overlap=Overlap(row["overlap"]),
        paused=row["paused"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        **kept,
    )
