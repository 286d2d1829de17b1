"""The order of queued runs, in memory."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from caseworker.runs.accept.postgres.batch_accept import few_of_queue
from caseworker.runs.run import Run, RunKey, RunStatus
from tests.support.memory_rows import Row


def next_row(
    rows: Mapping[RunKey, Row], now: datetime, excluding: Sequence[str] = ()
) -> Row | None:
    """Return the next queued run of the tenant with the fewest running ones."""
    runs = [row.run for row in rows.values() if row.run is not None]
    running = Counter(run.key.tenant for run in runs if run.status is RunStatus.RUNNING)
    ready = [
        (running[run.key.tenant], -run.queueing.priority, number)
        for number, run in enumerate(runs)
        if run.status is RunStatus.QUEUED
        and run.key.tenant not in excluding
        and not waits_for_its_key(rows, run)
        and (rows[run.key].not_before or now) <= now
    ]
    return rows[runs[min(ready)[2]].key] if ready else None


def waits_for_its_key(rows: Mapping[RunKey, Row], run: Run) -> bool:
    """Return whether the concurrency key of a run is used up to its limit."""
    queueing = run.queueing
    if queueing.concurrency_key is None or run.started_at is not None:
        return False
    holders = [
        other
        for row in rows.values()
        if (other := row.run) is not None
        and other.key.tenant == run.key.tenant
        and other.queueing.concurrency_key == queueing.concurrency_key
        and other.started_at is not None
        and not other.finished
    ]
    return len(holders) >= queueing.concurrency_limit


def is_full(waiting: Collection[RunKey], tenant: str, most: int | None) -> bool:
    """Return whether a queue of ``most`` slots refuses another run of a tenant."""
    if most is None or len(waiting) < most:
        return False
    own = sum(key.tenant == tenant for key in waiting)
    return own >= few_of_queue(most) or len(waiting) >= 2 * most
