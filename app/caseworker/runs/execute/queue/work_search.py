"""The statement with which each process looks for work once per heartbeat.

It also reads the heartbeats of all workers. Features add expressions for their own work
(:class:`Search`), so that an idle process polls nothing else.

See docs/internals.md, "Recovery".
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from caseworker.platform.errors import StoreUnavailableError

_LOOK = """
SELECT
    (SELECT json_object_agg(worker_id, beat_at) FROM workers) AS beats,
    EXISTS (SELECT FROM runs WHERE status = 'waiting' AND queued_at <= now()) AS due,
    EXISTS (
        SELECT FROM runs
        WHERE deadline <= now() AND status = 'queued'
    ) OR EXISTS (
        SELECT FROM runs
        WHERE status = 'queued' AND cancel_requested_at IS NOT NULL AND started_at IS NOT NULL
    ) AS stopped,
    EXISTS (
        SELECT FROM deaths d WHERE suspect AND (
            SELECT status = 'queued' AND queued_at <= now() FROM runs r
            WHERE r.tenant_id = d.tenant_id AND r.run_id = d.run_id)
    ) AND (
        SELECT count(*) FROM deaths d WHERE suspect AND (
            SELECT status = 'running' FROM runs r
            WHERE r.tenant_id = d.tenant_id AND r.run_id = d.run_id)
    ) < 2 AS suspects,
    EXISTS (SELECT FROM runs WHERE status = 'running') AS running,
    EXISTS (SELECT FROM procrastinate_jobs WHERE status = 'doing') AS doing,
    (
        SELECT extract(epoch FROM queued_at - now())::float8 FROM runs
        WHERE status = 'queued' ORDER BY queued_at LIMIT 1
    ) AS run_seconds"""

_NEXT_JOB = """
    SELECT extract(epoch FROM min(job.at) - now())::float8
    FROM unnest(ARRAY[{queues}]::text[]) AS queue(name), LATERAL (
        (SELECT now() AS at FROM procrastinate_jobs
        WHERE status = 'todo' AND queue_name = queue.name AND scheduled_at IS NULL
        ORDER BY id LIMIT 1)
        UNION ALL
        (SELECT scheduled_at FROM procrastinate_jobs
        WHERE status = 'todo' AND queue_name = queue.name AND scheduled_at IS NOT NULL
        ORDER BY scheduled_at LIMIT 1)
    ) job
"""


@dataclass(frozen=True, slots=True)
class Search:
    """Looks for work of one kind, as a part of the statement."""

    seconds: str
    """SQL query for the seconds until work is due: at most zero if some is due now; null or no row
    if there is none. It has no parameters, and should read one row of an index: with ``now()`` it
    does, with ``clock_timestamp()`` it would read all rows."""
    due: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when work is due."""

    async def keep(self, work: Callable[[], Awaitable[object]], pause_seconds: float = 0) -> None:
        """Do the work whenever it is due; after a database outage, when it is found again.

        Between two calls of ``work`` are at least ``pause_seconds``, for work that may stay due.
        """
        while True:
            await self.due.wait()
            self.due.clear()
            with suppress(StoreUnavailableError):
                await work()
            await asyncio.sleep(pause_seconds)


def look_statement(searches: Iterable[Search]) -> str:
    """Return the statement that reads the heartbeats of all workers, and which work there is.

    ``run_seconds`` are the seconds until the next queued run may start, and ``search_0`` and so on
    those of the searches. ``running`` and ``doing`` show whether a dead worker may have left runs
    or jobs. The few suspects are looked up one by one; a join might read all queued runs.

    The statement has no parameters, so the server plans it once for each connection.
    """
    columns = (f"({each.seconds}) AS search_{number}" for number, each in enumerate(searches))
    return ", ".join((_LOOK, *columns))


def next_job(queues: Iterable[str]) -> str:
    """Return a query for the seconds until the next job of ``queues`` may start."""
    return _NEXT_JOB.format(queues=", ".join(f"'{each}'" for each in queues))
