"""SQL that accepts runs: a batch insert for runs without conflicts, and an insert for all runs.

As in :mod:`run_statements`, the statements are written for the driver and take rows as one JSON
document.
"""

from caseworker.runs.postgres.dispatch import EXECUTE, QUEUE

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
"""Remaining storage, in bytes, below which a tenant's runs are accepted one by one.

It exceeds the bytes that the concurrent batches of all processes can insert together.
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
"""Insert runs without conflicts and return them; use :data:`ACCEPT_ONE` for the rest.

A run is not inserted if a run or an earlier cancel request has its ID. It is not inserted if its
idempotency key exists, or is locked with :data:`LOCK_KEY`. It is also not inserted if it might have
to wait for other runs of its tenant.

The rows must be sorted, so that two processes that insert the same IDs cannot deadlock.
"""

_WAITS = "status = 'queued' AND queued_at <= statement_timestamp()"
"""Whether a run is waiting for a worker."""

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
"""Insert queued runs, each with its job, under the conditions of :data:`ACCEPT_NEW`.

The last parameter is the maximum queue length. The result column ``waiting`` is the number of runs
that already wait, counted up to the first parameter; 0 skips the count. procrastinate's own SQL
function adds the jobs, with the same values as :class:`QueueDispatch`.
"""

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
"""Return those ``runs`` that were not inserted for the sole reason that the queue is long.

``is_full`` is whether the queue is full, so that the run is rejected without a further check, or
has capacity again. The queue holds ``most`` runs. Tenants with fewer than ``few`` queued runs may
extend it to twice that length. A run that may use this extension is not returned.
"""

LOCK_KEY = "SELECT pg_advisory_xact_lock(hashtextextended(%s || E'\\n' || %s, 0))"
"""Lock an idempotency key of a tenant until the transaction ends."""

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
"""Insert a run, even if a cancel request or the remains of an erased run have its ID.

If the run already exists, its row is locked but not returned. If there is an unexpired cancel
request, the run is stored as queued, so that this transaction can cancel it.
"""

_IS_QUEUED = """status = 'queued' AND queued_at <= CASE WHEN %s::boolean THEN 'infinity'
    ELSE statement_timestamp() END"""
"""Like :data:`_WAITS`; if the parameter is true, runs with a later start time count as well."""

COUNT_QUEUED = f"""
SELECT count(*) FROM (SELECT FROM runs WHERE {_IS_QUEUED} LIMIT %s) queued
"""  # noqa: S608
"""Count the queued runs of all tenants, up to a limit."""

COUNT_QUEUED_OF = f"""
SELECT count(*) FROM (SELECT FROM runs WHERE tenant_id = %s AND {_IS_QUEUED} LIMIT %s) queued
"""  # noqa: S608
"""Count the queued runs of a tenant, up to a limit.

A single statement for both counts would not use the tenant index.
"""
