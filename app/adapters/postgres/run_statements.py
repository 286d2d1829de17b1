"""The statements that change runs and what hangs on them: calls, events, snapshots.

They are written for the driver, and each stands here once. The batches of :mod:`journal` send them
over a connection of their own; transactions send the same text by ``exec_driver_sql``. They take
their rows as one JSON document, so that a statement is prepared once whatever the size of a batch.

Runs are looked up one by one, by LATERAL: in a join the planner, which knows nothing of the size of
a batch, reads the whole of a table that was small when it made its plan.
"""

OWNED = "('running', 'waiting')"
"""The statuses of a run that has an owner."""

_TERMINAL = "('completed', 'failed', 'halted', 'cancelled')"

_CANCEL_REQUEST = "runs.cancel_requested_at, runs.cancel_requested_by, runs.cancel_reason"

# -- accepting and cancelling ------------------------------------------------------------------

_INSERT = """
INSERT INTO runs (
    tenant_id, run_id, kind, request, request_hash, idempotency_key, metadata, created_at,
    status, fence, attempts, worker_id, queued_at, claimed_at, started_at
)
SELECT tenant_id, run_id, kind, request, request_hash, idempotency_key, metadata, now.at,
    CASE WHEN claimed THEN 'running' ELSE 'queued' END, claimed::integer, claimed::integer,
    worker_id, CASE WHEN NOT claimed THEN now.at END,
    CASE WHEN claimed THEN now.at END, CASE WHEN claimed THEN now.at END
FROM json_to_recordset(%s::json) AS new(
    tenant_id text, run_id text, kind text, request jsonb, request_hash text,
    idempotency_key text, metadata jsonb, worker_id text, claimed boolean
), (SELECT clock_timestamp() AS at) AS now
"""

ACCEPT_NEW = f"""{_INSERT}
WHERE idempotency_key IS NULL
    OR pg_try_advisory_xact_lock(hashtextextended(tenant_id || E'\\n' || idempotency_key, 0))
ON CONFLICT DO NOTHING
RETURNING tenant_id, run_id, created_at
"""
"""Insert runs. One that is not returned met something and is accepted by itself: its id existed,
as a run or as a pending cancel, its key did, or somebody holds :data:`LOCK_KEY` on the key.

The rows come sorted: two processes that insert the same ids must not wait for one another.
"""

LOCK_KEY = "SELECT pg_advisory_xact_lock(hashtextextended(%s || E'\\n' || %s, 0))"
"""Keep an idempotency key, of a tenant, to this transaction."""

_PENDING = "runs.pending_cancel_expires_at > excluded.created_at"

_WHERE_PENDING = {
    "status": "'queued'",
    "fence": "0",
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
    created_at = excluded.created_at, pending_cancel_expires_at = NULL, {_SET_BY_PENDING}
WHERE runs.request IS NULL
RETURNING runs.*
"""
"""Insert a run, or make one of a pending cancel; a run that is there is locked, not returned.

With a cancel request that has not expired the run is queued, for this transaction to cancel it.
"""

_FIRST_REQUEST = """(runs.cancel_requested_at IS NULL OR runs.request IS NULL
        AND runs.pending_cancel_expires_at <= excluded.cancel_requested_at)"""

REQUEST_CANCEL = f"""
INSERT INTO runs (
    tenant_id, run_id, cancel_requested_at, cancel_requested_by, cancel_reason,
    pending_cancel_expires_at
)
SELECT %s, %s, now.at, %s, %s, now.at + make_interval(secs => %s::float8)
FROM (SELECT clock_timestamp() AS at) AS now
ON CONFLICT (tenant_id, run_id) DO UPDATE SET
    cancel_requested_at = CASE WHEN {_FIRST_REQUEST} THEN excluded.cancel_requested_at
        ELSE runs.cancel_requested_at END,
    cancel_requested_by = CASE WHEN {_FIRST_REQUEST} THEN excluded.cancel_requested_by
        ELSE runs.cancel_requested_by END,
    cancel_reason = CASE WHEN {_FIRST_REQUEST} THEN excluded.cancel_reason
        ELSE runs.cancel_reason END,
    pending_cancel_expires_at = CASE WHEN runs.request IS NULL
        THEN excluded.pending_cancel_expires_at END
WHERE runs.status IS NULL OR runs.status NOT IN {_TERMINAL}
RETURNING runs.*
"""  # noqa: S608 - nothing of a caller's is in it, here and below
"""Store a cancel request on the row of its run; the first one counts. No row if it has ended."""

DROP_EXPIRED = """
DELETE FROM runs WHERE request IS NULL AND (tenant_id, run_id) IN (
    SELECT tenant_id, run_id FROM runs
    WHERE tenant_id = %s AND request IS NULL AND pending_cancel_expires_at <= clock_timestamp()
    LIMIT %s FOR UPDATE SKIP LOCKED
)
"""

COUNT_PENDING = """
SELECT count(*) FROM runs
WHERE tenant_id = %s AND request IS NULL AND pending_cancel_expires_at > clock_timestamp()
"""

COUNT_QUEUED = """
SELECT count(*) FROM (SELECT FROM runs WHERE status = 'queued' LIMIT %s) queued
"""

# -- calls and events --------------------------------------------------------------------------

_CALLS = """json_to_recordset(%s::json) AS c(
        tenant_id text, run_id text, fence integer, seq integer, status text, call_key text,
        request_hash text, charge jsonb, outcome text, value text, node jsonb,
        request json
    )"""

_WRITE_CALLS = """
    INSERT INTO calls (
        tenant_id, run_id, seq, status, call_key, request_hash, charge, outcome, value, node,
        request
    )
    SELECT tenant_id, run_id, seq, c.status, call_key, request_hash, charge, outcome, value::json,
        node, request
    FROM {calls}
    ON CONFLICT (tenant_id, run_id, seq) DO UPDATE SET
        status = excluded.status, charge = excluded.charge, outcome = excluded.outcome,
        value = excluded.value, node = excluded.node,
        request = coalesce(calls.request, excluded.request),
        call_key = coalesce(calls.call_key, excluded.call_key),
        request_hash = CASE WHEN calls.call_key IS NULL THEN excluded.request_hash
            ELSE calls.request_hash END
    WHERE calls.status IN ('created', 'running') OR calls.status = excluded.status
"""

SPENT = """
    SELECT coalesce(jsonb_object_agg(dimension, amount), '{}') AS charge,
        coalesce((SELECT active_seconds + CASE WHEN status = 'running'
                THEN greatest(0, extract(epoch FROM clock_timestamp() - claimed_at)) ELSE 0 END
            FROM runs WHERE tenant_id = %(tenant)s AND run_id = %(run_id)s), 0)::float8 AS seconds
    FROM (
        SELECT part.dimension, CASE WHEN bool_or(jsonb_typeof(part.amount) = 'string')
            THEN to_jsonb(sum((part.amount #>> '{}')::numeric)::text)
            ELSE to_jsonb(sum((part.amount #>> '{}')::numeric)) END AS amount
        FROM calls, jsonb_each(charge) AS part(dimension, amount)
        WHERE tenant_id = %(tenant)s AND run_id = %(run_id)s
        GROUP BY part.dimension
    ) AS spent"""
"""What a run has spent so far; money is stored as text, and is text here as well."""

WRITE_CALLS = _WRITE_CALLS.format(calls=_CALLS)
"""Write journal rows of a run that this transaction has locked. A call that has ended keeps the way
it ended; a node that was stored before anything was noted of it gets its key later."""

_EVENTS = """json_to_recordset(%s::json) AS n(
        tenant_id text, run_id text, fence integer, seq integer, ts timestamptz, type text,
        step_id text, node_id text, data jsonb, once_key text
    )"""

_WRITE_EVENTS = """
    INSERT INTO events (tenant_id, run_id, seq, ts, type, step_id, node_id, data, once_key)
    SELECT tenant_id, run_id, seq, ts, type, step_id, node_id, data, once_key
    FROM {events}
    ON CONFLICT (tenant_id, run_id, seq) DO UPDATE SET data = excluded.data
    WHERE excluded.data ? 'text_of' AND NOT events.data ? 'text_of'
"""

WRITE_EVENTS = _WRITE_EVENTS.format(events=_EVENTS)
"""Write events of a run that this transaction has locked; one that is stored stays as it is, but
for a text that is stored with a call by now."""


def _written_by(owner: str) -> str:
    """Return the parts of a statement that write calls and events of the runs in ``owner``."""
    join = f"JOIN {owner} USING (tenant_id, run_id, fence)"
    calls = _WRITE_CALLS.format(calls=f"{_CALLS} {join}")
    events = _WRITE_EVENTS.format(events=f"{_EVENTS} {join}")
    return f"calls_written AS ({calls}), events_written AS ({events})"


# -- what owners do ----------------------------------------------------------------------------

_ASKED = "json_to_recordset(%s::json) AS asked(tenant_id text, run_id text, fence integer)"

_THAT_RUN = """runs.tenant_id = asked.tenant_id AND runs.run_id = asked.run_id
            AND runs.fence = asked.fence"""

JOURNAL = f"""
WITH owned AS MATERIALIZED (
    SELECT run.* FROM {_ASKED}, LATERAL (
        SELECT runs.tenant_id, runs.run_id, runs.fence, {_CANCEL_REQUEST} FROM runs
        WHERE {_THAT_RUN} AND runs.status IN {OWNED}
        FOR NO KEY UPDATE SKIP LOCKED
    ) run
), {_written_by("owned")}
SELECT * FROM owned
"""  # noqa: S608
"""Store what runs did, and return those that are owned, with their cancel requests.

The lock on the run's row orders this against a DELETE: whichever commits first is seen by the
other, so once a cancel request is stored no barrier permits another call. A row that somebody else
has locked is passed over and asked for again, so that it does not hold up the runs beside it.
"""


def _finish(statuses: str) -> str:
    return f"""
WITH ended AS MATERIALIZED (
    SELECT * FROM json_to_recordset(%s::json) AS e(
        tenant_id text, run_id text, fence integer, status text, finish_reason text, result jsonb,
        usage jsonb, stop jsonb, active_seconds double precision, delivered_at timestamptz,
        snapshot json
    )
), locked AS MATERIALIZED (
    SELECT run.* FROM ended asked, LATERAL (
        SELECT runs.tenant_id, runs.run_id, runs.fence FROM runs
        WHERE {_THAT_RUN} AND runs.status IN {statuses}
            AND (runs.cancel_requested_at IS NULL OR asked.status = 'cancelled')
        FOR NO KEY UPDATE SKIP LOCKED
    ) run
), finished AS (
    UPDATE runs SET status = e.status, finish_reason = e.finish_reason, result = e.result,
        usage = e.usage, stop = e.stop, active_seconds = e.active_seconds,
        finished_at = clock_timestamp(), worker_id = NULL,
        cancel_delivered_at = coalesce(runs.cancel_delivered_at, e.delivered_at)
    FROM ended e JOIN locked USING (tenant_id, run_id, fence)
    WHERE runs.tenant_id = e.tenant_id AND runs.run_id = e.run_id AND runs.fence = e.fence
    RETURNING runs.tenant_id, runs.run_id, runs.fence, runs.finished_at
), {_written_by("finished")}, snapshots_written AS (
    INSERT INTO snapshots (tenant_id, run_id, snapshot)
    SELECT tenant_id, run_id, snapshot FROM ended JOIN finished USING (tenant_id, run_id, fence)
)
SELECT * FROM finished
"""  # noqa: S608


FINISH = _finish(OWNED)
"""Finish runs; one that is not returned is locked, is lost, or has been asked to stop."""

FINISH_QUEUED = _finish("('queued')")
"""Finish runs that nobody owns; their rows are locked by this transaction."""

RUN_STATES = f"""
SELECT run.* FROM {_ASKED}, LATERAL (
    SELECT runs.tenant_id, runs.run_id, runs.fence, runs.status, runs.active_seconds,
        runs.finished_at, {_CANCEL_REQUEST}
    FROM runs WHERE {_THAT_RUN} OFFSET 0
) run
"""  # noqa: S608
"""Return the state of runs that a statement passed over; one that is not returned is lost."""

CLAIM = """
UPDATE runs SET status = 'running', worker_id = %s, fence = fence + 1, attempts = attempts + 1,
    claimed_at = now.at, started_at = coalesce(started_at, now.at)
FROM (SELECT clock_timestamp() AS at) AS now
WHERE tenant_id = %s AND run_id = %s AND status = 'queued' AND queued_at <= now.at
RETURNING runs.*
"""
"""Take a queued run, unless it has to wait: the time from which it may be begun is in the row."""

RELEASE = f"""
UPDATE runs SET status = 'queued', worker_id = NULL, attempts = attempts - %s,
    queued_at = clock_timestamp() + make_interval(secs => %s::float8), active_seconds = %s
WHERE tenant_id = %s AND run_id = %s AND fence = %s AND status IN {OWNED}
RETURNING queued_at
"""  # noqa: S608

_PAUSE = """make_interval(secs => CASE
        WHEN runs.cancel_requested_at IS NOT NULL THEN 0
        WHEN runs.attempts < 2 OR runs.attempts >= %(max_attempts)s THEN 0
        ELSE least(5 * 6.0 ^ (runs.attempts - 2), 300)
    END)"""
"""How long a run waits that was lost: not at first, then 5, 30, 180 and at most 300 seconds."""

TAKE_LOST = f"""
WITH lost AS MATERIALIZED (
    SELECT tenant_id, run_id FROM runs
    WHERE status IN {OWNED} AND (
        worker_id = ANY(%(dead)s)
        OR (claimed_at < clock_timestamp() - make_interval(secs => %(stale_seconds)s::float8)
            AND NOT EXISTS (SELECT FROM workers w WHERE w.worker_id = runs.worker_id))
    )
    ORDER BY claimed_at LIMIT %(limit)s
    FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE runs SET status = 'queued', worker_id = NULL,
    queued_at = clock_timestamp() + {_PAUSE},
    active_seconds = runs.active_seconds + greatest(0, extract(epoch FROM
        coalesce((SELECT beat_at FROM workers w WHERE w.worker_id = runs.worker_id),
                 runs.claimed_at) - runs.claimed_at))
FROM lost WHERE runs.tenant_id = lost.tenant_id AND runs.run_id = lost.run_id
RETURNING runs.tenant_id, runs.run_id, runs.queued_at
"""  # noqa: S608
"""Put the runs of dead workers back into the queue.

A run whose worker has no row at all is left for as long as a silent worker would be: its process
may just have come back, and have accepted the run before its next beat.
"""

ADD_LATE = f"""
UPDATE runs SET usage = %s::jsonb
WHERE tenant_id = %s AND run_id = %s AND fence = %s AND status IN {_TERMINAL}
RETURNING run_id
"""  # noqa: S608
"""Replace the usage of a finished run; its status and result stay."""

# -- reading -----------------------------------------------------------------------------------

OWNED_BY = f"""
SELECT runs.tenant_id, runs.run_id, {_CANCEL_REQUEST}
FROM runs WHERE worker_id = %s AND status IN {OWNED}
"""  # noqa: S608

FORGOTTEN = """
SELECT tenant_id, run_id, queued_at FROM (
    SELECT tenant_id, run_id, queued_at FROM runs
    WHERE status = 'queued'
        AND queued_at < clock_timestamp() - make_interval(secs => %(stale_seconds)s::float8)
    ORDER BY queued_at LIMIT %(oldest)s
) run LEFT JOIN LATERAL (
    SELECT id FROM procrastinate_jobs
    WHERE queueing_lock = run.tenant_id || '/' || run.run_id AND status = 'todo' LIMIT 1
) job ON true
WHERE job.id IS NULL LIMIT %(limit)s
"""
"""Return queued runs that have no job. Jobs are taken in the order of their age, so such a run
comes to be among the oldest at the latest when it is its turn; looking at those alone costs the
same however many wait."""

EVENTS = """
SELECT runs.status, e.* FROM runs LEFT JOIN LATERAL (
    SELECT seq, ts, type, step_id, node_id, data FROM events
    WHERE events.tenant_id = runs.tenant_id AND events.run_id = runs.run_id
        AND seq > %(after)s::integer
    ORDER BY seq LIMIT %(limit)s
) e ON true
WHERE runs.tenant_id = %(tenant)s AND runs.run_id = %(run_id)s AND runs.request IS NOT NULL
ORDER BY e.seq
"""
"""Return a run's status and its events as they are at one moment."""

PAYLOADS = """
SELECT call_key, request_hash, charge, outcome, value, node, request FROM (
    SELECT *, sum(
        coalesce(octet_length(request::text), 0) + coalesce(octet_length(value::text), 0)
    ) OVER (ORDER BY seq) AS bytes_so_far
    FROM calls WHERE tenant_id = %s AND run_id = %s AND call_key IS NOT NULL
    AND (%s::text[] IS NULL OR call_key = ANY(%s::text[]))
) call
WHERE bytes_so_far <= %s ORDER BY seq
"""
"""Return the first calls of a run, with what they asked and what they got, up to so many bytes."""

CONVERSATION = """
WITH asked AS (
    SELECT seq, request FROM calls
    WHERE tenant_id = %(tenant)s AND run_id = %(run_id)s AND seq <= %(seq)s
        AND request IS NOT NULL
        AND %(call_key)s IN (call_key, request -> 'after' ->> 'call_key')
), named AS (
    SELECT coalesce(message ->> 'reply_of', message ->> 'result_of') AS call_key
    FROM asked, json_array_elements(request -> 'messages') AS message
)
SELECT call_key, request_hash, charge, outcome, value, node, request FROM (
    SELECT *, sum(
        coalesce(octet_length(request::text), 0) + coalesce(octet_length(value::text), 0)
    ) OVER (ORDER BY seq DESC) AS bytes_so_far
    FROM calls WHERE tenant_id = %(tenant)s AND run_id = %(run_id)s AND seq <= %(seq)s
        AND (seq IN (SELECT seq FROM asked) OR call_key IN (SELECT call_key FROM named))
) call
WHERE bytes_so_far <= %(max_bytes)s ORDER BY seq
"""
"""Return the calls of one conversation up to one of them, and the calls that their messages name,
the last ones up to so many bytes."""
