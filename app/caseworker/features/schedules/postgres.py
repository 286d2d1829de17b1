"""Storage for schedules in Postgres."""

from dataclasses import dataclass
from datetime import datetime
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
    update,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection

from caseworker.features.quotas.postgres import quota_of, storing
from caseworker.features.schedules.cron_times import CatchUp, Timing
from caseworker.features.schedules.schedule import (
    NewSchedule,
    Overlap,
    Schedule,
    ScheduledRun,
    ScheduleNotFoundError,
    TooManySchedulesError,
)
from caseworker.platform.paging import Page
from caseworker.platform.postgres.audit import Act, record
from caseworker.platform.postgres.engines import Engines, transaction
from caseworker.platform.postgres.locks import LOCK_SCHEDULES
from caseworker.runs.execute.postgres.runs import StoreLimits
from caseworker.runs.postgres.rows import (
    Row,
    decode_cursor,
    id_in,
    page_of,
    request_from_json,
    request_to_json,
)
from caseworker.runs.postgres.tables import INSTANT, columns, metadata
from caseworker.runs.run import Webhook

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

_PROGRESS_FIELDS = ("schedule_id", "next_at", "last_at", "last_run_id", "skipped", "last_error")


@dataclass(frozen=True, slots=True)
class PostgresSchedules:
    """Stores schedules in Postgres; see :mod:`caseworker.features.schedules.schedule`."""

    engines: Engines
    limits: StoreLimits
    max_schedules: int
    """Maximum number of schedules per tenant."""

    async def put(self, new: NewSchedule) -> tuple[Schedule, bool]:
        """Create or update a schedule; return it, and whether it was created.

        If the timing changes, the new timing applies from now on. Otherwise, runs that are already
        due stay due.

        Raises:
            TooManySchedulesError: the tenant has reached its limit.
        """
        async with transaction(self.engines.work) as connection:
            await connection.exec_driver_sql(LOCK_SCHEDULES, (new.tenant,))
            stored = await _locked(connection, new.tenant, new.name)
            if stored is None and await _count(connection, new.tenant) >= self.max_schedules:
                raise TooManySchedulesError
            values = {**_values(new), "next_at": await _next_at(connection, new, stored)}
            store: Insert | Update
            if stored is None:
                store = insert(schedules).values(**values)
            else:
                values |= {"updated_at": func.clock_timestamp(), "last_error": None}
                store = (
                    update(schedules).where(schedule_named(new.tenant, new.name)).values(**values)
                )
            quota = await quota_of(connection, new.tenant, self.limits.quota)
            async with storing(connection, new.tenant, quota):
                row = (await connection.execute(store.returning(schedules))).mappings().one()
            await record(connection, new.tenant, Act.SCHEDULE_SET, new.name)
        return schedule_of(row), stored is None

    async def get(self, tenant: str, name: str) -> Schedule:
        """Return the schedule with this name.

        Raises:
            ScheduleNotFoundError: the schedule does not exist.
        """
        query = select(schedules).where(schedule_named(tenant, name))
        async with transaction(self.engines.work, tenant) as connection:
            row = (await connection.execute(query)).mappings().one_or_none()
        if row is None:
            raise ScheduleNotFoundError(name)
        return schedule_of(row)

    async def find(self, tenant: str, *, limit: int, cursor: str | None) -> Page[Schedule]:
        """Return a page of schedules, ordered by name."""
        query = select(schedules).where(schedules.c.tenant_id == tenant)
        if cursor is not None:
            query = query.where(schedules.c.name > decode_cursor("schedules", cursor, id_in))
        query = query.order_by(schedules.c.name).limit(limit + 1)
        async with transaction(self.engines.work, tenant) as connection:
            rows = (await connection.execute(query)).mappings().all()
        return page_of("schedules", rows, limit, lambda row: row["name"], schedule_of)

    async def pause(self, tenant: str, name: str, *, paused: bool) -> Schedule:
        """Pause or resume a schedule. Scheduled times that pass while it is paused start no run.

        Raises:
            ScheduleNotFoundError: the schedule does not exist.
        """
        async with transaction(self.engines.work) as connection:
            stored = await _locked(connection, tenant, name)
            if stored is None:
                raise ScheduleNotFoundError(name)
            if stored.paused is paused:
                return stored
            next_at = None if paused else stored.timing.next_after(await moment(connection))
            changed = update(schedules).where(schedule_named(tenant, name)).returning(schedules)
            changed = changed.values(paused=paused, next_at=next_at, last_error=None)
            row = (await connection.execute(changed)).mappings().one()
            await record(connection, tenant, Act.SCHEDULE_SET, name)
        return schedule_of(row)

    async def delete(self, tenant: str, name: str) -> None:
        """Delete a schedule. The runs that it created are unaffected.

        Raises:
            ScheduleNotFoundError: the schedule does not exist.
        """
        deleted = delete(schedules).where(schedule_named(tenant, name)).returning(schedules.c.name)
        async with transaction(self.engines.work, tenant) as connection:
            if (await connection.execute(deleted)).one_or_none() is None:
                raise ScheduleNotFoundError(name)
            await record(connection, tenant, Act.SCHEDULE_DELETED, name)


async def _locked(connection: AsyncConnection, tenant: str, name: str) -> Schedule | None:
    query = select(schedules).where(schedule_named(tenant, name)).with_for_update()
    row = (await connection.execute(query)).mappings().one_or_none()
    return None if row is None else schedule_of(row)


async def _count(connection: AsyncConnection, tenant: str) -> int:
    counted = select(func.count()).select_from(schedules).where(schedules.c.tenant_id == tenant)
    return await connection.scalar(counted) or 0


async def moment(connection: AsyncConnection) -> datetime:
    """Return the time by the clock of the database."""
    now: datetime = (await connection.execute(select(func.clock_timestamp()))).scalar_one()
    return now


async def _next_at(
    connection: AsyncConnection, new: NewSchedule, stored: Schedule | None
) -> datetime | None:
    """Return the next instant of a new or changed schedule; an instant that is due stays due."""
    if new.paused:
        return None
    timing = (new.timing.cron, new.timing.timezone)
    if stored and stored.next_at and timing == (stored.timing.cron, stored.timing.timezone):
        return stored.next_at
    return new.timing.next_after(await moment(connection))


def schedule_named(tenant: str, name: str) -> Any:
    """Return the condition for the schedule with this name."""
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
        "sent": dict(run.body),
        "request": request_to_json(run.request),
        "request_hash": run.request_hash,
        "metadata": dict(run.metadata),
        "webhook": None if hook is None else {"url": hook.url, "events": list(hook.events)},
    }


def schedule_of(row: Row) -> Schedule:
    """Return the schedule in a row."""
    hook = row["webhook"]
    run = ScheduledRun(
        body=row["sent"],
        request=request_from_json(row["request"]),
        request_hash=row["request_hash"],
        metadata=row["metadata"],
        webhook=None if hook is None else Webhook(hook["url"], tuple(hook["events"])),
    )
    timing = Timing(row["cron"], row["timezone"], CatchUp(row["catch_up"]), row["max_catch_up"])
    progress: dict[str, Any] = {name: row[name] for name in _PROGRESS_FIELDS}
    progress["schedule_id"] = str(progress["schedule_id"])
    return Schedule(
        tenant=row["tenant_id"],
        name=row["name"],
        timing=timing,
        run=run,
        overlap=Overlap(row["overlap"]),
        paused=row["paused"],
        created_at=row["created_at"],
        updated_at=row["updated_at"],
        **progress,
    )
