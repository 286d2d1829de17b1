"""SQL that changes runs, calls and events.

The statements are SQL text with placeholders of the psycopg driver. The batches of :mod:`journal`
send them over their own connection; transactions send the same text with ``exec_driver_sql``. Each
takes its rows as one JSON document, so one prepared statement serves all batch sizes.

Runs are looked up one by one with LATERAL. For a join, the planner would not know the batch size.
It would keep scanning the whole table if the table was small when the plan was made.

See docs/internals.md, "One row decides".
"""

from caseworker.core.budget.accounts import KEY, SESSION, TENANT
from caseworker.runs.postgres.tables import CALLER_JSON

OWNED = "('running')"
"""Statuses of a run that a worker owns, as an SQL list."""

UNOWNED = "('queued', 'waiting')"
"""Statuses of a run that has not ended and that no worker owns, as an SQL list."""

_TERMINAL = "('completed', 'failed', 'halted', 'cancelled')"

_CANCEL_REQUEST = "runs.cancel_requested_at, runs.cancel_requested_by, runs.cancel_reason"

# -- cancelling ------------------------------------------------------------------------------

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
"""Store a cancel request in the run's row. The first one wins; no row is returned for an ended
run."""

FENCE_UNUSED = "(fence = 0 OR created_at <= statement_timestamp() - interval '1 day')"
"""SQL condition that is true if no former owner of an erased run can write to a new run with the
same ID."""

DROP_EXPIRED = f"""
DELETE FROM runs WHERE request IS NULL AND (tenant_id, run_id) IN (
    SELECT tenant_id, run_id FROM runs
    WHERE tenant_id = %s AND request IS NULL AND pending_cancel_expires_at <= statement_timestamp()
        AND {FENCE_UNUSED}
    LIMIT %s FOR UPDATE SKIP LOCKED
)
"""  # noqa: S608

COUNT_PENDING = """
SELECT count(*) FROM (
    SELECT FROM runs WHERE tenant_id = %s AND request IS NULL
        AND pending_cancel_expires_at > statement_timestamp() LIMIT %s
) pending
"""
"""Count the pending cancel requests of a tenant, up to a limit."""

# -- calls and events --------------------------------------------------------------------------

_CALLS = """json_to_recordset(%s::json) AS c(
        tenant_id text, run_id text, fence integer, seq integer, status text, call_key text,
        request_hash text, charge jsonb, outcome text, value text, node jsonb,
        brief json, request json
    )"""

_WRITE_CALLS = """
    INSERT INTO calls (
        tenant_id, run_id, seq, status, call_key, request_hash, charge, outcome, value, node,
        brief, request
    )
    SELECT tenant_id, run_id, seq, c.status, call_key, request_hash, charge, outcome, value::json,
        node, brief, request
    FROM {calls}
    ON CONFLICT (tenant_id, run_id, seq) DO UPDATE SET
        status = excluded.status, charge = excluded.charge, outcome = excluded.outcome,
        value = excluded.value, node = excluded.node, brief = excluded.brief,
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
        FROM journal, jsonb_each(charge) AS part(dimension, amount)
        WHERE tenant_id = %(tenant)s AND run_id = %(run_id)s
        GROUP BY part.dimension
    ) AS spent"""
"""Return the total of a run's charges and its execution time so far; costs are stored and returned
as text."""

WRITE_CALLS = _WRITE_CALLS.format(calls=_CALLS)
"""Write journal rows of a run whose row this transaction has locked.

A finished call keeps its outcome. A node that was stored without a call key may get its key later.
"""

_EVENTS = """json_to_recordset(%s::json) AS n(
        tenant_id text, run_id text, fence integer, seq integer, ts timestamptz, type text,
        step_id text, node_id text, data jsonb, brief text, once_key text
    )"""

_WRITE_EVENTS = """
    INSERT INTO events (tenant_id, run_id, seq, ts, type, step_id, node_id, data, brief, once_key)
    SELECT tenant_id, run_id, seq, ts, type, step_id, node_id, data, brief, once_key
    FROM {events}
    ON CONFLICT (tenant_id, run_id, seq) DO UPDATE
    SET type = excluded.type, data = excluded.data, brief = excluded.brief
    WHERE (excluded.data ? 'text_of' OR excluded.type IN ('~p', '~k'))
        AND NOT events.data ? 'text_of'
"""

WRITE_EVENTS = _WRITE_EVENTS.format(events=_EVENTS)
"""Write events of a run whose row this transaction has locked.

A stored event does not change, except that its text is removed once a call contains the text.
"""


def _written_by(owner: str) -> str:
    """Return the CTEs that write calls and events of the runs in ``owner``.

    The join makes each row depend on the fencing token: rows of a run that another worker owns by
    now are dropped, although they are in the same batch.
    """
    join = f"JOIN {owner} USING (tenant_id, run_id, fence)"
    calls = _WRITE_CALLS.format(calls=f"{_CALLS} {join}")
    events = _WRITE_EVENTS.format(events=f"{_EVENTS} {join}")
    return f"calls_written AS ({calls}), events_written AS ({events})"


def _size(columns: str) -> str:
    return " + ".join(f"coalesce(pg_column_size({column}), 0)" for column in columns.split())


_OF_RUN = "part WHERE part.tenant_id = runs.tenant_id AND part.run_id = runs.run_id"

_STORED_JSON = " ".join(f"runs.{name}" for name in ("request", *CALLER_JSON, "result"))

STORED_BYTES = f"""{_size(_STORED_JSON)}
    + coalesce((SELECT sum({_size("value request brief node")}) FROM calls {_OF_RUN}), 0)
    + coalesce((SELECT sum({_size("data brief")}) FROM events {_OF_RUN}), 0)"""  # noqa: S608
"""Compressed size in bytes of a row of ``runs`` with its calls and events.

Rows that the same statement writes are not counted. Files are counted separately.
"""

WEBHOOKS_QUEUE = "webhooks"
DELIVER = "deliver_webhook"
"""Name of the task that delivers a webhook."""

_ANNOUNCE_FINISHED = f"""deliveries AS (
    INSERT INTO webhook_deliveries (tenant_id, run_id, type, url)
    SELECT tenant_id, run_id, 'run.' || status, webhook ->> 'url' FROM finished
    WHERE webhook IS NOT NULL AND webhook -> 'events' ? ('run.' || status)
    RETURNING tenant_id, delivery_id
), deliveries_queued AS (
    INSERT INTO procrastinate_jobs (queue_name, task_name, queueing_lock, args)
    SELECT '{WEBHOOKS_QUEUE}', '{DELIVER}', 'webhook/' || delivery_id,
        jsonb_build_object('tenant', tenant_id, 'delivery_id', delivery_id)
    FROM deliveries
)
"""  # noqa: S608
"""CTEs that store a delivery and its job for each run in ``finished`` that has a webhook."""

# -- what owners do ----------------------------------------------------------------------------

_OWNERS = "json_to_recordset(%s::json) AS asked(tenant_id text, run_id text, fence integer)"

_STATUS = "coalesce(runs.status, '')"
"""Status expression that matches no partial index, so that the primary key finds the run."""

_THAT_RUN = """runs.tenant_id = asked.tenant_id AND runs.run_id = asked.run_id
            AND runs.fence = asked.fence"""

_JOURNAL = f"""
WITH owned AS MATERIALIZED (
    SELECT run.* FROM {_OWNERS}, LATERAL (
        SELECT runs.tenant_id, runs.run_id, runs.fence, {_CANCEL_REQUEST} FROM runs
        WHERE {_THAT_RUN} AND {_STATUS} IN {OWNED}
        FOR NO KEY UPDATE SKIP LOCKED
    ) run
), {_written_by("owned")}"""  # noqa: S608

JOURNAL = f"""{_JOURNAL}
SELECT * FROM owned
"""  # noqa: S608
"""Store journal writes of runs; return the runs that are still owned, with their cancel requests.

The row lock orders this against a DELETE request. Whichever commits first is visible to the other,
so after a cancel request was stored, no barrier permits another call. A row locked by another
transaction is skipped and retried, so that it does not delay the other runs of the batch.
"""


def _of_owned(holds: str, owned: str) -> str:
    """Return SQL for the rows of a JSON parameter that belong to the runs in ``owned``."""
    return f"""(SELECT json_agg(h) FROM json_to_recordset(%s::json) AS h({holds})
            JOIN {owned} USING (tenant_id, run_id, fence))"""  # noqa: S608


_HOLD = """tenant_id text, run_id text, fence integer, seq integer, attempt integer,
            cost_usd numeric, tokens bigint, llm_calls bigint, api_calls bigint"""

JOURNAL_WITH_HOLDS = f"""{_JOURNAL}, reserved AS MATERIALIZED (
    SELECT answer.* FROM (
        SELECT {_of_owned(_HOLD, "owned")} AS settled,
            {_of_owned(f"{_HOLD}, number integer, accounts text[]", "owned")} AS calls
    ) of_owned, LATERAL caseworker_reserve(settled, calls, %s::json) AS answer
)
SELECT owned.*, (
    SELECT json_agg(json_build_array(seq, attempt, granted, limits)) FROM reserved
    WHERE reserved.tenant_id = owned.tenant_id AND reserved.run_id = owned.run_id
        AND reserved.fence = owned.fence
) AS holds FROM owned
"""  # noqa: S608
"""Store journal writes of runs like :data:`JOURNAL`, settle holds, and reserve calls in accounts.

Each owned run has the answers to its calls. The parameters after those of :data:`JOURNAL` are the
settled holds, the calls to reserve, and the limits of tenants without a quota of their own.
"""

SETTLE = "SELECT caseworker_settle(%s::json)"
"""Settle holds of runs whose rows this transaction has locked."""


BY_CALLS = "0"
"""Value of ``runs.reserved_cost_usd`` of a run whose calls reserve in accounts.

A larger value was reserved for the whole run by the previous release, and null means that neither
applies.
"""

_ADD_TO_ACCOUNT = """ON CONFLICT (tenant_id, account, period) DO UPDATE SET
        used_cost_usd = a.used_cost_usd + excluded.used_cost_usd,
        reserved_cost_usd = a.reserved_cost_usd + excluded.reserved_cost_usd"""


def _cost(usage: str = "usage") -> str:
    """Return the SQL for a run's cost; if a call has an unknown price, the known part."""
    return f"coalesce({usage}->>'cost_usd', {usage}->>'cost_usd_known', '0')::numeric"


def _finish(statuses: str, charged: str) -> str:
    """Return the statement that ends runs with one of ``statuses``.

    A row that another transaction has locked, such as a DELETE request, is skipped, so that it does
    not delay the other runs of the batch. The group commit looks up the state of each skipped run
    and writes it again. A run whose cancel request was stored first ends only as cancelled.
    """
    return f"""
WITH ended AS MATERIALIZED (
    SELECT * FROM json_to_recordset(%s::json) AS e(
        tenant_id text, run_id text, fence integer, status text, finish_reason text, result jsonb,
        usage jsonb, stop jsonb, active_seconds double precision, delivered_at timestamptz,
        written_bytes bigint
    )
), locked AS MATERIALIZED (
    SELECT run.* FROM ended asked, LATERAL (
        SELECT runs.tenant_id, runs.run_id, runs.fence FROM runs
        WHERE {_THAT_RUN} AND {_STATUS} IN {statuses}
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
    RETURNING runs.tenant_id, runs.run_id, runs.fence, runs.finished_at, runs.status, runs.webhook,
        runs.reserved_cost_usd, {_cost("runs.usage")} AS cost_usd,
        (runs.created_at AT TIME ZONE 'UTC')::date AS day,
        runs.concurrency_key IS NOT NULL OR EXISTS (
            SELECT FROM quotas WHERE quotas.tenant_id = runs.tenant_id) AS frees_capacity,
        {STORED_BYTES} + e.written_bytes AS stored_bytes
), {_written_by("finished")}, charged AS (
    INSERT INTO accounts AS a (tenant_id, account, period, used_cost_usd, reserved_cost_usd)
    SELECT tenant_id, '{TENANT}', day, sum(cost_usd), -sum(coalesce(reserved_cost_usd, 0))
    FROM finished WHERE {charged} GROUP BY tenant_id, day ORDER BY tenant_id, day
    {_ADD_TO_ACCOUNT}
), sized AS (
    INSERT INTO stored_runs (tenant_id, run_id, bytes)
    SELECT tenant_id, run_id, stored_bytes FROM finished
    ON CONFLICT (tenant_id, run_id) DO UPDATE SET bytes = excluded.bytes
), unanswered AS (
    UPDATE approvals a SET run_ended = true FROM finished
    WHERE a.tenant_id = finished.tenant_id AND a.run_id = finished.run_id AND a.decision IS NULL
), {_ANNOUNCE_FINISHED}
SELECT tenant_id, run_id, fence, finished_at, frees_capacity FROM finished,
    (SELECT caseworker_settle({_of_owned(_HOLD, "finished")})) AS settled
"""  # noqa: S608


_COSTS = "(cost_usd > 0 OR reserved_cost_usd > 0)"

FINISH = _finish(OWNED, f"{_COSTS} AND reserved_cost_usd IS DISTINCT FROM {BY_CALLS}")
"""End runs that workers own, and return them. A run that is not returned is locked, is owned by
another worker, or has a cancel request. The calls of a run that reserve in accounts are charged by
their holds, and holds without an actual amount by the trigger on ``runs``."""

FINISH_UNOWNED = _finish(UNOWNED, _COSTS)
"""End runs that no worker owns. The transaction must already hold the locks on their rows.

If the calls of a run reserved in accounts, they are charged there already. The trigger on ``runs``
therefore subtracts the cost that this statement adds.
"""

RUN_STATES = f"""
SELECT run.* FROM {_OWNERS}, LATERAL (
    SELECT runs.tenant_id, runs.run_id, runs.fence, runs.status, runs.active_seconds,
        runs.finished_at, {_CANCEL_REQUEST}
    FROM runs WHERE {_THAT_RUN} OFFSET 0
) run
"""  # noqa: S608
"""Return the state of runs that a statement skipped. A run that is not returned is owned by another
worker or has ended."""

CLAIM = """
SELECT * FROM caseworker_claim(
    %s, %s::integer, %s::text, %s::text, %s::text[], true, %s::boolean, %s::text[]
)
"""
"""Claim the next queued run, or a given one, unless it has to wait.

The last parameters are false to claim no suspects of a death, and null to claim any run; and the
kinds of runs to claim, null for all kinds.

The next run belongs to the tenant with the fewest running runs, among the 16 tenants that were
served longest ago. Of the tenant's runs, the highest priority comes first, then the oldest. A run
waits until its start time, and while its tenant or its concurrency key is at its limit.
"""

CLAIM_SUSPECT = "SELECT * FROM caseworker_claim_suspect(%s, %s::integer, %s::text[])"
"""Claim the next suspect of a death, unless two are being executed already, in any process."""

DEATHS = """
SELECT count, calls, cause, suspect FROM deaths WHERE tenant_id = %s AND run_id = %s
"""

COUNT_DEATH = f"""
INSERT INTO deaths AS d (tenant_id, run_id, count, calls, cause, suspect)
SELECT tenant_id, run_id, CASE WHEN %(alone)s THEN 1 ELSE %(shared)s END, calls, %(cause)s,
    request ->> 'kind' <> 'external' AND NOT (%(alone)s AND %(max_attempts)s <= 1)
FROM json_to_recordset(%(runs)s::json) AS seen(tenant_id text, run_id text, calls json)
JOIN runs USING (tenant_id, run_id)
WHERE worker_id = %(worker_id)s AND status IN {OWNED}
ON CONFLICT (tenant_id, run_id) DO UPDATE SET calls = excluded.calls, cause = excluded.cause,
    count = CASE WHEN %(alone)s THEN d.count + 1 ELSE greatest(d.count, excluded.count) END,
    suspect = excluded.suspect AND NOT (%(alone)s AND d.count + 1 >= %(max_attempts)s)
RETURNING run_id, count
"""  # noqa: S608
"""Count the death of a worker against the runs that executed code in it.

If only one run executed code, it is counted against that run. Otherwise ``shared`` is the count
that all of them have at least. They are suspects then, unless the count has reached the maximum. A
run of another program is never a suspect, because its requests reach only the process that owns it.
"""

COUNT_BROKEN = """
INSERT INTO deaths AS d (tenant_id, run_id, count, calls, cause, suspect)
VALUES (%s, %s, 1, '[]', '', false)
ON CONFLICT (tenant_id, run_id) DO UPDATE SET count = d.count + 1
"""
"""Count an execution of a run that failed in the service itself."""

CLEAR_DEATHS = "DELETE FROM deaths WHERE tenant_id = %s AND run_id = %s"

CLAIM_STOPPED = """
UPDATE runs SET status = 'running', worker_id = %s, fence = fence + 1, attempts = attempts + 1,
    claimed_at = clock_timestamp()
WHERE tenant_id = %s AND run_id = %s AND status = 'queued' AND started_at IS NOT NULL
    AND (cancel_requested_at IS NOT NULL OR deadline <= statement_timestamp())
RETURNING *
"""
"""Claim a run that has started and was stopped, unless a worker owns it.

It is executed only to its end, so it waits for no other run.
"""

RELEASE = f"""
UPDATE runs SET status = 'queued', worker_id = NULL,
    attempts = attempts - (NOT counted)::integer, losses = losses + counted::integer,
    queued_at = clock_timestamp() + make_interval(secs => %s::float8), active_seconds = %s
FROM (SELECT %s::boolean AS counted) AS attempt
WHERE tenant_id = %s AND run_id = %s AND fence = %s AND status IN {OWNED}
RETURNING status, queued_at
"""  # noqa: S608
"""Return a run to the queue, if this worker still owns it.

An execution that does not count is taken back from ``attempts``; one that counts is also a loss.
The transaction stores the last calls and events, and a job for the run.
"""

_PAUSE = """make_interval(secs => CASE
        WHEN runs.cancel_requested_at IS NOT NULL THEN 0
        WHEN judged.losses < 2 OR judged.deaths >= %(max_attempts)s THEN 0
        ELSE least(5 * 6.0 ^ (judged.losses - 2), 300)
    END)"""
"""Back-off of a run that was lost repeatedly without progress.

None at first, then 5, 30, 180 and at most 300 seconds.
"""

_ENDED = """(
        SELECT count(DISTINCT call_key)::integer FROM journal
        WHERE journal.tenant_id = runs.tenant_id AND journal.run_id = runs.run_id
            AND outcome = 'result' AND NOT coalesce(node -> 'metadata' ? 'taken_over', false)
    )"""
"""Number of calls and steps of a run that have a result; a repeated one counts once."""

TAKE_LOST = f"""
WITH lost AS MATERIALIZED (
    SELECT tenant_id, run_id, losses, ended_calls, {_ENDED} AS ended,
        coalesce((SELECT count FROM deaths d
            WHERE d.tenant_id = runs.tenant_id AND d.run_id = runs.run_id), 0) AS deaths
    FROM runs
    WHERE status IN {OWNED} AND (
        worker_id = ANY(%(dead)s)
        OR (claimed_at < statement_timestamp() - make_interval(secs => %(stale_seconds)s::float8)
            AND NOT EXISTS (SELECT FROM workers w WHERE w.worker_id = runs.worker_id))
    )
    ORDER BY claimed_at LIMIT %(limit)s
    FOR NO KEY UPDATE SKIP LOCKED
), judged AS (
    SELECT tenant_id, run_id, ended, deaths,
        CASE WHEN ended > ended_calls THEN 0 ELSE losses + 1 END AS losses
    FROM lost
)
UPDATE runs SET status = 'queued', worker_id = NULL,
    losses = judged.losses, ended_calls = judged.ended,
    queued_at = clock_timestamp() + {_PAUSE},
    active_seconds = runs.active_seconds + greatest(0, extract(epoch FROM
        coalesce((SELECT beat_at FROM workers w WHERE w.worker_id = runs.worker_id),
                 runs.claimed_at) - runs.claimed_at))
FROM judged WHERE runs.tenant_id = judged.tenant_id AND runs.run_id = judged.run_id
RETURNING runs.tenant_id, runs.run_id, runs.queued_at
"""  # noqa: S608
"""Requeue the runs of dead workers.

A loss is consecutive if the run has produced no further result since the previous loss. Otherwise
the count of losses restarts at zero.

A run whose worker has no row is only requeued ``stale_seconds`` after its claim. The worker may
have returned after an outage and claimed the run before its next heartbeat.
"""

ADD_LATE = f"""
WITH before AS MATERIALIZED (
    SELECT {_cost()} AS cost_usd FROM runs
    WHERE tenant_id = %(tenant)s AND run_id = %(run_id)s FOR NO KEY UPDATE
), changed AS (
    UPDATE runs SET usage = %(usage)s::jsonb FROM before
    WHERE tenant_id = %(tenant)s AND run_id = %(run_id)s AND fence = %(fence)s
        AND status IN {_TERMINAL}
    RETURNING tenant_id, (created_at AT TIME ZONE 'UTC')::date AS day,
        {_cost()} - before.cost_usd AS more_usd,
        runs.request #> '{{graph,steps,0,data,external,client}}' AS client
), charged AS (
    INSERT INTO accounts AS a (tenant_id, account, period, used_cost_usd)
    SELECT tenant_id, account, day, more_usd FROM changed, unnest(ARRAY[
        '{TENANT}', '{KEY}:' || (client ->> 'account'),
        rtrim('{SESSION}:' || (client ->> 'account') || ':' || (client ->> 'session'), ':')
    ]) AS account
    WHERE more_usd <> 0 AND account IS NOT NULL ORDER BY account
    {_ADD_TO_ACCOUNT}
)
SELECT tenant_id FROM changed
"""  # noqa: S608
"""Replace the usage of a run that has ended, and charge the difference in cost to its tenant, and
to the accounts of the standing key that has opened it."""

# -- reading -----------------------------------------------------------------------------------

OWNED_BY = f"""
SELECT runs.tenant_id, runs.run_id, {_CANCEL_REQUEST}
FROM runs WHERE worker_id = %s AND status IN {OWNED}
"""  # noqa: S608

OVERDUE = """
SELECT * FROM runs
WHERE deadline <= statement_timestamp() AND status = 'queued' AND started_at IS NULL
ORDER BY deadline LIMIT %s FOR NO KEY UPDATE SKIP LOCKED
"""
"""Lock and return the queued runs that never started and whose deadline has passed."""

STOPPED_STARTED = """
(
    SELECT tenant_id, run_id FROM runs
    WHERE deadline <= statement_timestamp() AND status = 'queued' AND started_at IS NOT NULL
    ORDER BY deadline LIMIT %s
) UNION (
    SELECT tenant_id, run_id FROM runs
    WHERE status = 'queued' AND cancel_requested_at IS NOT NULL AND started_at IS NOT NULL
    ORDER BY queued_at LIMIT %s
)
"""
"""Return the queued runs that have started and have a cancel request or a passed deadline."""

WAKE_STOPPED = f"""
UPDATE runs SET status = 'queued', queued_at = clock_timestamp()
WHERE tenant_id = %s AND run_id = %s AND status IN {UNOWNED}
"""  # noqa: S608
"""Queue a run that has started, so that a worker ends it."""
