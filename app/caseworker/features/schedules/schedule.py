"""Schedules: runs that are started repeatedly, at times given by a cron expression.

A schedule stores the validated request for its runs: graphs and agents are inline, and defaults and
ceilings are filled in. The schedule's row holds the next scheduled time. One transaction creates
the run, advances the next time, and enqueues the next wake-up. The run's ID is derived from the
schedule and the scheduled time, so a time can never start two runs.
"""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from caseworker.features.schedules.cron_times import Timing
from caseworker.runs.run import NewRun, Queueing, RunKey, RunRequest, Webhook


class Overlap(StrEnum):
    """What to do at a scheduled time if the previous run has not ended."""

    ALLOW = "allow"
    SKIP = "skip"
    CANCEL_RUNNING = "cancel_running"


class ScheduleNotFoundError(LookupError):
    """The schedule does not exist or belongs to another tenant."""


class TooManySchedulesError(Exception):
    """The tenant already has the maximum number of schedules."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledRun:
    """The request from which the runs of a schedule are created."""

    body: Mapping[str, Any]
    """The request as the caller sent it, before defaults were filled in."""
    request: RunRequest
    request_hash: str
    metadata: Mapping[str, Any] = field(default_factory=dict)
    webhook: Webhook | None = None

    def new_run(self, key: RunKey, about: Mapping[str, Any], **more: Any) -> NewRun:
        """Return a run to create for ``key``.

        ``about`` is added to the run's metadata, but does not override values of the caller.
        """
        return NewRun(
            key=key,
            request=self.request,
            request_hash=self.request_hash,
            metadata={**about, **self.metadata},
            webhook=self.webhook,
            queueing=Queueing(
                priority=int(self.body.get("priority") or 0),
                concurrency_key=self.body.get("concurrency_key"),
                concurrency_limit=int(self.body.get("concurrency_limit") or 1),
            ),
            **more,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class NewSchedule:
    """A schedule as defined by the caller: name, request, timing and policies."""

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
    """ID of the schedule, which updates do not change. If a schedule is deleted and created again
    under the same name, it gets a new ID."""
    next_at: datetime | None
    """Next scheduled time; None while the schedule is paused."""
    last_at: datetime | None = None
    """Most recent scheduled time that has passed; None before the first one."""
    last_run_id: str | None = None
    """ID of the most recent run that the schedule created; None before the first one."""
    skipped: int = 0
    """Number of scheduled runs that were skipped because the previous run had not ended."""
    last_error: str | None = None
    """Error message of the last attempt to create a run, which is retried; None after a success."""
    created_at: datetime
    updated_at: datetime

    def run_at(self, instant: datetime) -> NewRun:
        """Return the run to create for a scheduled time."""
        run_id = str(uuid.uuid5(uuid.UUID(self.schedule_id), instant.astimezone(UTC).isoformat()))
        return self.run.new_run(RunKey(self.tenant, run_id), self.about(instant))

    def about(self, instant: datetime) -> dict[str, str]:
        """Return the metadata that identifies the schedule and the scheduled time of a run."""
        at = instant.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
        return {"schedule": self.name, "scheduled_at": at}
