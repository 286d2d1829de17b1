"""The statements that accept runs: many at once that meet nothing, and one that may meet anything.

Like those of :mod:`run_statements` they are written for the driver and take rows as one document.
"""

from caseworker.adapters.postgres.dispatch import EXECUTE, QUEUE

_INSERT = """
INSERT INTO runs (
    tenant_id, run_id, kind, request, request_hash, idempotency_key, metadata, created_at,
    priority, concurrency_key, concurrency_limit, deadline, webhook,
    status, fence, attempts, worker_id, queued_at, claimed_at, started_at
)
SELECT tenant_id, run_id, kind, request, request_hash, idempotency_key, metadata, now.at,
    coalesce(priority, 0), concurrency_key, concurrency_limit, deadline, webhook,
    CASE WHEN claimed THEN 'running' ELSE 'queued' END, claimed::integer, claimed::integer,
    worker_id, CASE WHEN NOT claimed THEN greatest(now.at, start_at) END,
    CASE WHEN claimed THEN now.at END, CASE WHEN claimed THEN now.at END
FROM json_to_recordset(%s::json) AS new(
    tenant_id text, run_id text, kind text, request jsonb, request_hash text,
    idempotency_key text, metadata jsonb, worker_id text, claimed boolean,
    priority smallint, concurrency_key text, concurrency_limit integer, deadline timestamptz,
    webhook jsonb, start_at timestamptz, max_stored_bytes bigint
), (SELECT clock_timestamp() AS at) AS now
"""

NEARLY_FULL_BYTES = 1 << 28
"""So much before its limit of storage, runs of a tenant are accepted one by one.

It is more than all processes together store by the batches that they insert at the same time.
"""

_HAS_NO_LIMIT = f"""concurrency_key IS NULL
    AND NOT EXISTS (SELECT FROM quotas WHERE quotas.tenant_id = new.tenant_id)
    AND (max_stored_bytes IS NULL OR max_stored_bytes - {NEARLY_FULL_BYTES} >= coalesce(
        (SELECT sum(bytes) FROM stored WHERE stored.tenant_id = new.tenant_id), 0))"""  # noqa: S608

_MEETS_NOTHING = f"""{_HAS_NO_LIMIT} AND (idempotency_key IS NULL
    OR pg_try_advisory_xact_lock(hashtextextended(tenant_id || E'\\n' || idempotency_key, 0)))
"""

ACCEPT_NEW = f"""{_INSERT}
WHERE {_MEETS_NOTHING}
ON CONFLICT DO NOTHING
RETURNING tenant_id, run_id, created_at
"""
"""Insert runs. One that is not returned met something and is accepted by itself: its id existed,
as a run or as a pending cancel, its key did, somebody holds :data:`LOCK_KEY` on the key, or it may
have to wait for other runs of its tenant.

The rows come sorted: two processes that insert the same ids must not wait for one another.
"""

_WAITS = "status = 'queued' AND queued_at <= statement_timestamp()"
"""Whether a run waits for a worker."""

ACCEPT_QUEUED = f"""
WITH before AS MATERIALIZED (
    SELECT count(*) AS waiting FROM (SELECT FROM runs WHERE {_WAITS} LIMIT %s::bigint) queued
), accepted AS (
    {_INSERT}
    WHERE {_MEETS_NOTHING}
    LIMIT greatest(0, %s::bigint - (SELECT waiting FROM before))
    ON CONFLICT DO NOTHING
    RETURNING tenant_id, run_id, created_at
), deferred AS (
    SELECT cardinality(procrastinate_defer_jobs_v1(array_agg(ROW(
        '{QUEUE}', '{EXECUTE}', 0, NULL, tenant_id || '/' || run_id,
        jsonb_build_object('tenant', tenant_id, 'run_id', run_id), NULL
    )::procrastinate_job_to_defer_v1))) AS jobs
    FROM accepted
)
SELECT accepted.*, jobs, waiting FROM accepted, deferred, before
"""  # noqa: S608
"""Insert runs that are queued, each with its job, as :data:`ACCEPT_NEW` inserts claimed ones; only
as many as may be queued, by the last parameter, beside those that wait already. These are counted
up to the first parameter, and returned as ``waiting``: with 0 there they are not counted. The
library's own function adds the jobs; what it is given is what :class:`QueueDispatch` gives it."""

ASK_FOR_ROOM = f"""
SELECT tenant_id, run_id, waiting >= %(most)s::bigint AS is_full
FROM json_to_recordset(%(runs)s::json) AS new(
    tenant_id text, run_id text, idempotency_key text, concurrency_key text,
    max_stored_bytes bigint
), (
    SELECT count(*) AS waiting
    FROM (SELECT FROM runs WHERE {_WAITS} LIMIT 2 * %(most)s::bigint) queued
) AS queue
WHERE {_HAS_NO_LIMIT}
AND (
    waiting < %(most)s::bigint OR waiting >= 2 * %(most)s::bigint
    OR (SELECT count(*) FROM (SELECT FROM runs WHERE runs.tenant_id = new.tenant_id AND {_WAITS}
        LIMIT %(few)s::bigint) own) >= %(few)s::bigint
)
AND NOT EXISTS (
    SELECT FROM runs WHERE runs.tenant_id = new.tenant_id AND runs.run_id = new.run_id
) AND (idempotency_key IS NULL OR NOT EXISTS (
    SELECT FROM runs
    WHERE runs.tenant_id = new.tenant_id AND runs.idempotency_key = new.idempotency_key
))
"""  # noqa: S608
"""Of ``runs`` return those that are new, and that nothing but the length of the queue has hindered:
with whether it is full, to refuse them as they are, or has room again. At ``most`` so many may be
queued, and twice as many beside tenants that have ``few``: a run whose tenant has fewer of its own,
and may have a place beyond, is not returned.
"""

LOCK_KEY = "SELECT pg_advisory_xact_lock(hashtextextended(%s || E'\\n' || %s, 0))"
"""Keep an idempotency key, of a tenant, to this transaction."""

_PENDING = "runs.pending_cancel_expires_at > excluded.created_at"

_WHERE_PENDING = {
    "status": "'queued'",
    "attempts": "0",
    "worker_id": "NULL",
    "queued_at": "excluded.created_at",
    "claimed_at": "NULL",
    "started_at": "NULL",
    "cancel_requested_at": "runs.cancel_requested_at",
    "cancel_requested_by": "runs.cancel_requested_by",
    "cancel_reason": "runs.cancel_reason",
}
_SET_BY_PENDING = ", ".join(
    f"{column} = CASE WHEN {_PENDING} THEN {kept} ELSE excluded.{column} END"
    for column, kept in _WHERE_PENDING.items()
)

ACCEPT_ONE = f"""{_INSERT}
ON CONFLICT (tenant_id, run_id) DO UPDATE SET
    kind = excluded.kind, request = excluded.request, request_hash = excluded.request_hash,
    idempotency_key = excluded.idempotency_key, metadata = excluded.metadata,
    created_at = excluded.created_at, pending_cancel_expires_at = NULL,
    webhook = excluded.webhook, priority = excluded.priority,
    concurrency_key = excluded.concurrency_key, concurrency_limit = excluded.concurrency_limit,
    deadline = excluded.deadline, fence = runs.fence + CASE WHEN runs.fence > 0 THEN 1
        WHEN {_PENDING} THEN 0 ELSE excluded.fence END, {_SET_BY_PENDING}
WHERE runs.request IS NULL
RETURNING runs.*
"""
"""Insert a run, or make one of a pending cancel or of what is kept of an erased run; a run that is
there is locked, not returned.

With a cancel request that has not expired the run is queued, for this transaction to cancel it.
"""

_IS_QUEUED = """status = 'queued' AND queued_at <= CASE WHEN %s::boolean THEN 'infinity'
    ELSE statement_timestamp() END"""
"""As :data:`_WAITS`, and with the parameter also one whose time has not come."""

COUNT_QUEUED = f"""
SELECT count(*) FROM (SELECT FROM runs WHERE {_IS_QUEUED} LIMIT %s) queued
"""  # noqa: S608
"""Count the runs that wait, up to a limit."""

COUNT_QUEUED_OF = f"""
SELECT count(*) FROM (SELECT FROM runs WHERE tenant_id = %s AND {_IS_QUEUED} LIMIT %s) queued
"""  # noqa: S608
"""Count those of a tenant. One statement for both would find them without the index of tenants."""
