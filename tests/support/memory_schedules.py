"""Schedules in memory, for tests of the HTTP layer: none ever fires."""

import uuid
from dataclasses import replace
from datetime import UTC, datetime

from app.runs.errors import InvalidRunError
from app.schedules.schedule import (
    NewSchedule,
    Schedule,
    ScheduleNotFoundError,
    SchedulePage,
    TooManySchedulesError,
)

MAX_SCHEDULES = 100


class MemorySchedules:
    """Implements the store of schedules."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], Schedule] = {}

    async def put(self, new: NewSchedule) -> tuple[Schedule, bool]:
        now, key = datetime.now(UTC), (new.tenant, new.name)
        old = self._kept.get(key)
        if old is None and len(self._kept) >= MAX_SCHEDULES:
            raise TooManySchedulesError
        self._kept[key] = Schedule(
            **{name: getattr(new, name) for name in NewSchedule.__dataclass_fields__},
            schedule_id=old.schedule_id if old else str(uuid.uuid4()),
            next_at=None if new.paused else new.timing.next_after(now),
            created_at=old.created_at if old else now,
            updated_at=now,
        )
        return self._kept[key], old is None

    async def get(self, tenant: str, name: str) -> Schedule:
        try:
            return self._kept[tenant, name]
        except KeyError:
            raise ScheduleNotFoundError(name) from None

    async def find(self, tenant: str, *, limit: int, cursor: str | None) -> SchedulePage:
        if cursor is not None and not cursor.isalnum():
            raise InvalidRunError("cursor", "This is no cursor.")
        mine = [one for (owner, _), one in sorted(self._kept.items()) if owner == tenant]
        return SchedulePage([one for one in mine if one.name > (cursor or "")][:limit], None)

    async def pause(self, tenant: str, name: str, *, paused: bool) -> Schedule:
        found = await self.get(tenant, name)
        next_at = None if paused else found.timing.next_after(datetime.now(UTC))
        self._kept[tenant, name] = replace(found, paused=paused, next_at=next_at)
        return self._kept[tenant, name]

    async def delete(self, tenant: str, name: str) -> None:
        await self.get(tenant, name)
        del self._kept[tenant, name]
