"""The few statements that every run passes through, each for a whole batch of runs.

They take their rows as one JSON document, so that a statement is prepared once whatever the size
of the batch, and they are sent over the driver itself: the query builder would cost more than
the database does.
"""

ACCEPT = """
INSERT INTO runs (
    tenant_id, run_id, kind, status, request, request_hash, metadata,
    fence, attempts, worker_id, created_at, claimed_at, started_at
)
SELECT tenant_id, run_id, kind, 'running', request, request_hash, metadata,
    1, 1, worker_id, clock_timestamp(), clock_timestamp(), clock_timestamp()
FROM json_to_recordset(%s::json) AS new(
    tenant_id text, run_id text, kind text, request jsonb, request_hash text, metadata jsonb,
    worker_id text
)
ON CONFLICT (tenant_id, run_id) DO NOTHING
RETURNING tenant_id, run_id, created_at
"""
"""Insert claimed runs; a row that is not returned existed before, as a run or as an intent."""

_CALL_COLUMNS = """
    tenant_id text, run_id text, seq integer, status text, call_key text, request_hash text,
    charge jsonb, outcome text, value jsonb, node jsonb
"""

_UPSERT_CALLS = f"""
    INSERT INTO calls (
        tenant_id, run_id, seq, status, call_key, request_hash, charge, outcome, value, node
    )
    SELECT tenant_id, run_id, seq, c.status, call_key, request_hash, charge, outcome, value, node
    FROM json_to_recordset(%s::json) AS c({_CALL_COLUMNS})
    JOIN {{owner}} USING (tenant_id, run_id)
    ON CONFLICT (tenant_id, run_id, seq) DO UPDATE SET
        status = excluded.status, charge = excluded.charge, outcome = excluded.outcome,
        value = excluded.value, node = excluded.node
    WHERE calls.status IN ('created', 'running') OR calls.status = excluded.status
"""  # noqa: S608 - nothing of a caller's is in it

JOURNAL = f"""
WITH owned AS MATERIALIZED (
    SELECT runs.tenant_id, runs.run_id, runs.cancel_requested_at, runs.cancel_requested_by,
        runs.cancel_reason
    FROM runs
    JOIN json_to_recordset(%s::json) AS asked(tenant_id text, run_id text, fence integer)
        USING (tenant_id, run_id)
    WHERE runs.fence = asked.fence AND runs.status IN ('running', 'waiting')
    ORDER BY runs.tenant_id, runs.run_id
    FOR NO KEY UPDATE OF runs
), written AS (
    {_UPSERT_CALLS.format(owner="owned")}
), kept AS (
    INSERT INTO snapshots (tenant_id, run_id, version, final, snapshot)
    SELECT tenant_id, run_id, 1 + coalesce((
        SELECT max(version) FROM snapshots old
        WHERE old.tenant_id = s.tenant_id AND old.run_id = s.run_id
    ), 0), false, snapshot
    FROM json_to_recordset(%s::json) AS s(tenant_id text, run_id text, snapshot json)
    JOIN owned USING (tenant_id, run_id)
)
SELECT * FROM owned
"""  # noqa: S608
"""Store what runs did and tell which of them may go on.

The lock on the run's row orders this against a DELETE: whichever commits first is seen by the
other, so after a stored wish no barrier answers yes.
"""

SETTLE = f"""
WITH ended AS MATERIALIZED (
    SELECT * FROM json_to_recordset(%s::json) AS e(
        tenant_id text, run_id text, fence integer, status text, finish_reason text, result jsonb,
        usage jsonb, stop jsonb, active_seconds double precision, delivered_at timestamptz,
        snapshot json
    )
), settled AS (
    UPDATE runs SET status = e.status, finish_reason = e.finish_reason, result = e.result,
        usage = e.usage, stop = e.stop, active_seconds = e.active_seconds,
        finished_at = clock_timestamp(), worker_id = NULL,
        cancel_delivered_at = coalesce(runs.cancel_delivered_at, e.delivered_at)
    FROM ended e
    WHERE runs.tenant_id = e.tenant_id AND runs.run_id = e.run_id AND runs.fence = e.fence
        AND runs.status IN ('running', 'waiting')
        AND (runs.cancel_requested_at IS NULL OR e.status = 'cancelled')
    RETURNING runs.tenant_id, runs.run_id
), written AS (
    {_UPSERT_CALLS.format(owner="settled")}
), kept AS (
    INSERT INTO snapshots (tenant_id, run_id, version, final, snapshot)
    SELECT tenant_id, run_id, 1 + coalesce((
        SELECT max(version) FROM snapshots old
        WHERE old.tenant_id = e.tenant_id AND old.run_id = e.run_id
    ), 0), true, snapshot
    FROM ended e JOIN settled USING (tenant_id, run_id)
)
SELECT tenant_id, run_id FROM settled
"""  # noqa: S608
"""End runs; one that is not returned was lost, or has been asked to stop."""

STANDING = """
SELECT runs.tenant_id, runs.run_id, runs.cancel_requested_at, runs.cancel_requested_by,
    runs.cancel_reason
FROM runs
JOIN json_to_recordset(%s::json) AS asked(tenant_id text, run_id text, fence integer)
    USING (tenant_id, run_id)
WHERE runs.fence = asked.fence AND runs.status IN ('running', 'waiting')
"""
"""Say which of the runs that could not be settled still belong to this process, and why not."""
