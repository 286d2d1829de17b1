"""The few statements that every run passes through, each for a whole batch of runs.

They take their rows as one JSON document, so that a statement is prepared once whatever the size
of the batch, and they are sent over the driver itself: the query builder would cost more than
the database does.

Runs are looked up one by one, by LATERAL: in a join the planner, which knows nothing of the size of
a batch, reads the whole of a table that was small when it made its plan.
"""

ACCEPT = """
INSERT INTO runs (
    tenant_id, run_id, kind, status, request, request_hash, idempotency_key, metadata,
    fence, attempts, worker_id, created_at, claimed_at, started_at
)
SELECT tenant_id, run_id, kind, 'running', request, request_hash, idempotency_key, metadata,
    1, 1, worker_id, clock_timestamp(), clock_timestamp(), clock_timestamp()
FROM json_to_recordset(%s::json) AS new(
    tenant_id text, run_id text, kind text, request jsonb, request_hash text,
    idempotency_key text, metadata jsonb, worker_id text
)
WHERE idempotency_key IS NULL
    OR pg_try_advisory_xact_lock(hashtextextended(tenant_id || E'\\n' || idempotency_key, 0))
ON CONFLICT DO NOTHING
RETURNING tenant_id, run_id, created_at
"""
"""Insert claimed runs; a row that is not returned must be sorted out apart.

Its id existed before, as a run or as an intent, or its key did, or somebody is just busy with the
key: whoever is holds the lock of :mod:`accepting`, for which no batch waits.

The rows come sorted: two processes that insert the same ids must not wait for one another.
"""

_ASKED = "json_to_recordset(%s::json) AS asked(tenant_id text, run_id text, fence integer)"

_THAT_RUN = """runs.tenant_id = asked.tenant_id AND runs.run_id = asked.run_id
            AND runs.fence = asked.fence"""

_CANCEL_REQUEST = "runs.cancel_requested_at, runs.cancel_requested_by, runs.cancel_reason"

_CALLS = """json_to_recordset(%s::json) AS c(
        tenant_id text, run_id text, fence integer, seq integer, status text, call_key text,
        request_hash text, charge jsonb, outcome text, value jsonb, node jsonb
    )"""

UPSERT_CALLS = """
    INSERT INTO calls (
        tenant_id, run_id, seq, status, call_key, request_hash, charge, outcome, value, node
    )
    SELECT tenant_id, run_id, seq, c.status, call_key, request_hash, charge, outcome, value, node
    FROM {calls}
    ON CONFLICT (tenant_id, run_id, seq) DO UPDATE SET
        status = excluded.status, charge = excluded.charge, outcome = excluded.outcome,
        value = excluded.value, node = excluded.node,
        call_key = coalesce(calls.call_key, excluded.call_key),
        request_hash = CASE WHEN calls.call_key IS NULL THEN excluded.request_hash
            ELSE calls.request_hash END
    WHERE calls.status IN ('created', 'running') OR calls.status = excluded.status
"""
"""Write journal rows; a call that has ended keeps the way it ended.

A node that was stored before anything was noted of it gets its key later.
"""

WRITE_CALLS = UPSERT_CALLS.format(calls=_CALLS.replace("%s::json", "CAST(:calls AS json)"))
"""The same on its own, for a transaction that holds the lock on the run's row."""

_EVENTS = """json_to_recordset(%s::json) AS n(
        tenant_id text, run_id text, fence integer, seq integer, ts timestamptz, type text,
        step_id text, node_id text, data jsonb
    )"""

INSERT_EVENTS = """
    INSERT INTO events (tenant_id, run_id, seq, ts, type, step_id, node_id, data)
    SELECT tenant_id, run_id, seq, ts, type, step_id, node_id, data
    FROM {events}
    ON CONFLICT (tenant_id, run_id, seq) DO NOTHING
"""
"""Write events; one that is stored stays as it is."""

WRITE_EVENTS = INSERT_EVENTS.format(events=_EVENTS.replace("%s::json", "CAST(:events AS json)"))
"""The same on its own, for a transaction that holds the lock on the run's row."""

_OWNED_EVENTS = f"{_EVENTS} JOIN {{owner}} USING (tenant_id, run_id, fence)"

_OWNED_CALLS = f"{_CALLS} JOIN {{owner}} USING (tenant_id, run_id, fence)"

_INSERT_SNAPSHOTS = """
    INSERT INTO snapshots (tenant_id, run_id, version, final, snapshot)
    SELECT tenant_id, run_id, 1 + coalesce((
        SELECT max(version) FROM snapshots old
        WHERE old.tenant_id = s.tenant_id AND old.run_id = s.run_id
    ), 0), {final}, snapshot
    FROM {snapshots} s JOIN {owner} USING (tenant_id, run_id, fence)
"""

JOURNAL = f"""
WITH owned AS MATERIALIZED (
    SELECT run.* FROM {_ASKED}, LATERAL (
        SELECT runs.tenant_id, runs.run_id, runs.fence, {_CANCEL_REQUEST} FROM runs
        WHERE {_THAT_RUN} AND runs.status IN ('running', 'waiting')
        FOR NO KEY UPDATE SKIP LOCKED
    ) run
), given AS (
    SELECT * FROM json_to_recordset(%s::json) AS g(
        tenant_id text, run_id text, fence integer, snapshot json
    )
), written AS (
    {UPSERT_CALLS.format(calls=_OWNED_CALLS.format(owner="owned"))}
), told AS (
    {INSERT_EVENTS.format(events=_OWNED_EVENTS.format(owner="owned"))}
), kept AS (
    {_INSERT_SNAPSHOTS.format(final="false", snapshots="given", owner="owned")}
)
SELECT * FROM owned
"""  # noqa: S608 - nothing of a caller's is in it
"""Store what runs did and tell which of them may go on.

The lock on the run's row orders this against a DELETE: whichever commits first is seen by the
other, so after a stored wish no barrier answers yes. A row that somebody else has locked is passed
over and asked for again, so that it does not hold up the runs beside it.
"""

FINISH = f"""
WITH ended AS MATERIALIZED (
    SELECT * FROM json_to_recordset(%s::json) AS e(
        tenant_id text, run_id text, fence integer, status text, finish_reason text, result jsonb,
        usage jsonb, stop jsonb, active_seconds double precision, delivered_at timestamptz,
        snapshot json
    )
), locked AS MATERIALIZED (
    SELECT run.* FROM ended asked, LATERAL (
        SELECT runs.tenant_id, runs.run_id, runs.fence FROM runs
        WHERE {_THAT_RUN} AND runs.status IN ('running', 'waiting')
            AND (runs.cancel_requested_at IS NULL OR asked.status = 'cancelled')
        FOR NO KEY UPDATE SKIP LOCKED
    ) run
), settled AS (
    UPDATE runs SET status = e.status, finish_reason = e.finish_reason, result = e.result,
        usage = e.usage, stop = e.stop, active_seconds = e.active_seconds,
        finished_at = clock_timestamp(), worker_id = NULL,
        cancel_delivered_at = coalesce(runs.cancel_delivered_at, e.delivered_at)
    FROM ended e JOIN locked USING (tenant_id, run_id, fence)
    WHERE runs.tenant_id = e.tenant_id AND runs.run_id = e.run_id AND runs.fence = e.fence
    RETURNING runs.tenant_id, runs.run_id, runs.fence, runs.finished_at
), written AS (
    {UPSERT_CALLS.format(calls=_OWNED_CALLS.format(owner="settled"))}
), told AS (
    {INSERT_EVENTS.format(events=_OWNED_EVENTS.format(owner="settled"))}
), kept AS (
    {_INSERT_SNAPSHOTS.format(final="true", snapshots="ended", owner="settled")}
)
SELECT * FROM settled
"""  # noqa: S608
"""End runs; one that is not returned is locked, is lost, or has been asked to stop."""

STANDING = f"""
SELECT run.* FROM {_ASKED}, LATERAL (
    SELECT runs.tenant_id, runs.run_id, runs.fence, runs.status, runs.active_seconds,
        runs.finished_at, {_CANCEL_REQUEST}
    FROM runs WHERE {_THAT_RUN} OFFSET 0
) run
"""  # noqa: S608
"""Say how the runs stand that a statement passed over; one that is not returned is lost."""
