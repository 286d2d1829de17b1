"""Suspends runs that wait for the decision of an approval.

A statement that itself waits for the lock of a run's row would not see rows committed during the
wait. The row is therefore locked in a separate statement before.
"""

from collections.abc import Collection
from typing import Any

from sqlalchemy.ext.asyncio import AsyncConnection

from caseworker.runs.postgres.run_statements import OWNED
from caseworker.runs.run import Run

LOCK_OWNED = f"""
SELECT FROM runs WHERE tenant_id = %s AND run_id = %s AND fence = %s AND status IN {OWNED}
FOR NO KEY UPDATE
"""
"""Lock a run's row if it has the owner's fencing token; returns no row if ownership was lost."""

SUSPEND = """
UPDATE runs SET status = CASE WHEN resumes THEN 'queued' ELSE 'waiting' END, worker_id = NULL,
    attempts = attempts - 1, active_seconds = %(active_seconds)s,
    queued_at = CASE WHEN resumes THEN now.at ELSE least(until, %(deadline)s::timestamptz) END
FROM (SELECT clock_timestamp() AS at) AS now, LATERAL (
    SELECT coalesce(bool_or(decision IS NOT NULL OR expires_at <= now.at), true) AS answered,
        min(expires_at) AS until
    FROM approvals WHERE tenant_id = %(tenant)s AND run_id = %(run_id)s
        AND approval_id = ANY(%(waits_for)s)
) AS asked, LATERAL (
    SELECT answered OR EXISTS (
        SELECT FROM runs WHERE tenant_id = %(tenant)s AND run_id = %(run_id)s
            AND cancel_requested_at IS NOT NULL
    ) AS resumes
) AS found
WHERE runs.tenant_id = %(tenant)s AND runs.run_id = %(run_id)s
RETURNING runs.status, runs.queued_at
"""
"""Suspend a run until an approval is decided.

:data:`LOCK_OWNED` must have locked the run's row in the same transaction. The run is queued instead
if an approval was already decided or has timed out, or if the run has a cancel request. While a run
waits, ``queued_at`` is the latest time at which it resumes.
"""


async def suspend_in(
    connection: AsyncConnection, run: Run, *, active_seconds: float, waits_for: Collection[str]
) -> Any:
    """Suspend a run in this transaction, until an approval in ``waits_for`` is decided.

    Return the row with its new status, or None if ownership of the run was lost.
    """
    key = run.key
    locked = await connection.exec_driver_sql(LOCK_OWNED, (key.tenant, key.run_id, run.fence))
    if locked.rowcount == 0:
        return None
    suspended = {
        "tenant": key.tenant,
        "run_id": key.run_id,
        "active_seconds": active_seconds,
        "deadline": run.request.deadline,
        "waits_for": list(waits_for),
    }
    return (await connection.exec_driver_sql(SUSPEND, suspended)).one()
