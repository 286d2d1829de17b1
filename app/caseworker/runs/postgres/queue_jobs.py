"""Adds jobs to the queue, in the transaction that stores the work; any free worker takes them.

See docs/internals.md, "Recovery".
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from caseworker.platform.postgres.json_text import exact_dump
from caseworker.runs.run import RunKey

EXECUTE = "execute_run"
QUEUE = "runs"

_DEFER = """
INSERT INTO procrastinate_jobs (queue_name, task_name, queueing_lock, args, scheduled_at)
SELECT queue, task, lock, arguments, at FROM json_to_recordset(%s::json)
    AS job(queue text, task text, lock text, arguments jsonb, at timestamptz)
ORDER BY lock
ON CONFLICT DO NOTHING
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """A job that wakes a process for work that is stored in a table row."""

    queue: str
    task: str
    lock: str
    """Name of the queueing lock: no job is added while another one with the same lock waits."""
    arguments: Mapping[str, Any]
    at: datetime | None
    """Earliest start time; None means at once."""


async def defer_runs(connection: AsyncConnection, runs: Mapping[RunKey, datetime | None]) -> None:
    """Add one job for each run, to be taken no earlier than the given time (None: at once).

    A run that already has a waiting job keeps that job.
    """
    jobs = [
        QueuedJob(
            queue=QUEUE,
            task=EXECUTE,
            lock=f"{key.tenant}/{key.run_id}",
            arguments={"tenant": key.tenant, "run_id": key.run_id},
            at=at,
        )
        for key, at in runs.items()
    ]
    await defer(connection, jobs)


async def defer(connection: AsyncConnection, jobs: Sequence[QueuedJob]) -> None:
    """Add jobs, except those whose lock a waiting job already holds."""
    rows = [{**asdict(job), "at": job.at and job.at.isoformat()} for job in jobs]
    if rows:
        await connection.exec_driver_sql(_DEFER, (exact_dump(rows),))
