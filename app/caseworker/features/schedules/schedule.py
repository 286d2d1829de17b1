"""Schedules: runs that are accepted repeatedly, by a cron expression.

A schedule stores the request of its runs as it was accepted: graphs and agents inline, defaults and
ceilings filled in. Its row holds the next instant. One transaction accepts the run, advances the
next instant and enqueues the next wake-up. The run's id is derived from the schedule and the
instant, so an instant can never start two runs.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Protocol

from caseworker.features.schedules.timing import Timing
from caseworker.runs.quotas import Queueing
from caseworker.runs.run import NewRun, RunKey, RunRequest, Webhook


class Overlap(StrEnum):
    """Policy for an instant at which the previous run has not ended."""

    ALLOW = "allow"
    SKIP = "skip"
    CANCEL_RUNNING = "cancel_running"


class ScheduleNotFoundError(LookupError):
    """The schedule does not exist or belongs to another tenant."""


class TooManySchedulesError(Exception):
    """The tenant has reached its limit of schedules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledRun:
    """The request that the runs of a schedule are created from."""

    sent: Mapping[str, Any]
    """The request as the caller sent it."""
    request: RunRequest
    request_hash: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    webhook: Webhook | None = None

    def new_run(self, key: RunKey, about: Mapping[str, Any], **more: Any) -> NewRun:
        """Return a run to accept; ``about`` is added to its metadata without overriding keys."""
        return NewRun(
            key=key,
            request=self.request,
            request_hash=self.request_hash,
            metadata={**about, **self.metadata},
            webhook=self.webhook,
            queueing=Queueing(
                priority=int(self.sent.get("priority") or 0),
                concurrency_key=self.sent.get("concurrency_key"),
                concurrency_limit=int(self.sent.get("concurrency_limit") or 1),
            ),
            **more,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSchedule:
    """The desired definition of a schedule."""

    tenant: str
    name: str
    timing: Timing
    run: ScheduledRun
    overlap: Overlap = Overlap.SKIP
    paused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule(NewSchedule):
    """A stored schedule."""

    schedule_id: str
    """Stable across updates; a schedule deleted and recreated under its name gets a new one."""
    next_at: datetime | None
    """None while the schedule is paused."""
    last_at: datetime | None = None
    """The last instant that was due."""
    last_run_id: str | None = None
    """The most recent run of the schedule."""
    skipped: int = 0
    """Number of instants skipped because the previous run had not ended."""
    last_error: str | None = None
    """Why the last attempt to fire failed; it is retried."""
    created_at: datetime
    updated_at: datetime

    def run_at(self, instant: datetime) -> NewRun:
        """Return the run for an instant."""
        run_id = str(uuid.uuid5(uuid.UUID(self.schedule_id), instant.astimezone(UTC).isoformat()))
        return self.run.new_run(RunKey(self.tenant, run_id), self.about(instant))

    def about(self, instant: datetime) -> dict[str, str]:
        """Return the metadata that identifies the schedule in a run."""
        at = instant.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        return {"schedule": self.name, "scheduled_at": at}


@dataclass(frozen=True, slots=True)
class SchedulePage:
    """Schedules, ordered by name."""

    schedules: Sequence[Schedule]
    next_cursor: str | None


class ScheduleStore(Protocol):
    """Stores schedules; all times are on the database's clock."""

    async def put(self, new: NewSchedule) -> tuple[Schedule, bool]:
        """Create a schedule or update the one with that name; return whether it was created.

        A changed timing applies from now on; with unchanged timing, due instants stay due.

        Raises:
            TooManySchedulesError: the tenant has reached its limit.
        """
        ...

    async def get(self, tenant: str, name: str) -> Schedule:
        """Return a schedule.

        Raises:
            ScheduleNotFoundError: the schedule does not exist.
        """
        ...

    async def find(self, tenant: str, *, limit: int, cursor: str | None) -> SchedulePage:
        """Return a page of schedules, ordered by name."""
        ...

    async def pause(self, tenant: str, name: str, *, paused: bool) -> Schedule:
        """Pause or resume a schedule; instants missed while paused never fire.

        Raises:
            ScheduleNotFoundError: the schedule does not exist.
        """
        ...

    async def delete(self, tenant: str, name: str) -> None:
        """Delete a schedule; its runs are unaffected.

        Raises:
            ScheduleNotFoundError: the schedule does not exist.
        """
        ...
