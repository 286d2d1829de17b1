"""Schedules: runs that are accepted again and again, by a cron expression.

A schedule keeps the request that its runs are made with, as it was accepted: graphs and agents in
full, defaults and ceilings filled in. Its row says when it fires next. Whoever fires it accepts the
run, moves that instant on and orders the next wake-up in one transaction; the run's id follows from
the schedule and the instant, so that an instant can never have two.
"""

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Protocol

from caseworker.runs.quotas import Queueing
from caseworker.runs.run import NewRun, RunKey, RunRequest, Webhook
from caseworker.schedules.timing import Timing


class Overlap(StrEnum):
    """What happens at an instant while the run that was made last has not ended."""

    ALLOW = "allow"
    SKIP = "skip"
    CANCEL_RUNNING = "cancel_running"


class ScheduleNotFoundError(LookupError):
    """There is no such schedule, or it belongs to somebody else."""


class TooManySchedulesError(Exception):
    """The tenant has as many schedules as it may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledRun:
    """What the runs of a schedule are made with."""

    sent: Mapping[str, Any]
    """As its caller wrote it."""
    request: RunRequest
    request_hash: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    webhook: Webhook | None = None

    def new_run(self, key: RunKey, about: Mapping[str, Any], **more: Any) -> NewRun:
        """Return a run to accept; ``about`` is added to its metadata where they do not have it."""
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
    """A schedule as it is to be from now on."""

    tenant: str
    name: str
    timing: Timing
    run: ScheduledRun
    overlap: Overlap = Overlap.SKIP
    paused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule(NewSchedule):
    """A schedule as its store shows it."""

    schedule_id: str
    """Stays while the schedule is changed; one that is made anew under its name has another."""
    next_at: datetime | None
    """None while it is paused."""
    last_at: datetime | None = None
    """The last instant that was due."""
    last_run_id: str | None = None
    """The run that it made last."""
    skipped: int = 0
    """How many instants made no run because the last one had not ended."""
    last_error: str | None = None
    """Why the last attempt to fire it failed; it is made again."""
    created_at: datetime
    updated_at: datetime

    def run_at(self, instant: datetime) -> NewRun:
        """Return the run of an instant."""
        run_id = str(uuid.uuid5(uuid.UUID(self.schedule_id), instant.astimezone(UTC).isoformat()))
        return self.run.new_run(RunKey(self.tenant, run_id), self.about(instant))

    def about(self, instant: datetime) -> dict[str, str]:
        """Return what the metadata of a run say of the schedule."""
        at = instant.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        return {"schedule": self.name, "scheduled_at": at}


@dataclass(frozen=True, slots=True)
class SchedulePage:
    """Schedules, by name."""

    schedules: Sequence[Schedule]
    next_cursor: str | None


class ScheduleStore(Protocol):
    """Keeps schedules; time is that of the database."""

    async def put(self, new: NewSchedule) -> tuple[Schedule, bool]:
        """Make a schedule, or change the one of that name; True if it was made.

        A changed time applies from now on; with the same time, what is due stays due.

        Raises:
            TooManySchedulesError: the tenant has as many as it may.
        """
        ...

    async def get(self, tenant: str, name: str) -> Schedule:
        """Return a schedule.

        Raises:
            ScheduleNotFoundError: there is none.
        """
        ...

    async def find(self, tenant: str, *, limit: int, cursor: str | None) -> SchedulePage:
        """Return a page of schedules, by name."""
        ...

    async def pause(self, tenant: str, name: str, *, paused: bool) -> Schedule:
        """Pause or resume a schedule; what would have fired meanwhile does not fire later.

        Raises:
            ScheduleNotFoundError: there is none.
        """
        ...

    async def delete(self, tenant: str, name: str) -> None:
        """Delete a schedule; its runs are not touched.

        Raises:
            ScheduleNotFoundError: there is none.
        """
        ...
