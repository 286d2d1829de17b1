"""SQL statements that read the events, payloads and conversations of runs."""

EVENTS = """
SELECT runs.status, e.* FROM runs LEFT JOIN LATERAL (
    SELECT seq, ts, type, step_id, node_id, data, brief FROM events
    WHERE events.tenant_id = runs.tenant_id AND events.run_id = runs.run_id
        AND seq > %(after)s::integer
    ORDER BY seq LIMIT %(limit)s
) e ON true
WHERE runs.tenant_id = %(tenant)s AND runs.run_id = %(run_id)s AND runs.request IS NOT NULL
ORDER BY e.seq
"""
"""Return a run's status and its events in one consistent read."""

PAYLOADS = """
SELECT call_key, request_hash, charge, outcome, value, node, request FROM (
    SELECT *, sum(
        coalesce(octet_length(request::text), 0) + coalesce(octet_length(value::text), 0)
    ) OVER (ORDER BY seq) AS bytes_so_far
    FROM journal WHERE tenant_id = %s AND run_id = %s AND call_key IS NOT NULL
    AND (%s::text[] IS NULL OR call_key = ANY(%s::text[]))
) call
WHERE bytes_so_far <= %s ORDER BY seq
"""
"""Return the first calls of a run with their requests and results, up to a total size in bytes."""

CONVERSATION = """
WITH asked AS (
    SELECT seq, request FROM journal
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
    FROM journal WHERE tenant_id = %(tenant)s AND run_id = %(run_id)s AND seq <= %(seq)s
        AND (seq IN (SELECT seq FROM asked) OR call_key IN (SELECT call_key FROM named))
) call
WHERE bytes_so_far <= %(max_bytes)s ORDER BY seq
"""
"""Return the calls of a conversation up to a given call, and the calls that they reference.

If they exceed the byte limit, only the newest calls are returned.
"""

STREAMED = """
SELECT step_id, (data ->> 'turn_number')::int AS turn, (data ->> 'offset')::int AS offset,
    data ->> 'content' AS content
FROM events AS part
WHERE tenant_id = %(tenant)s AND run_id = %(run_id)s AND type = 'content_chunk' AND data ? 'content'
    AND seq > coalesce((
        SELECT max(seq) FROM events AS ended WHERE ended.tenant_id = part.tenant_id
            AND ended.run_id = part.run_id AND ended.step_id = part.step_id
            AND ended.type IN ('usage', '~u')
    ), 0)
ORDER BY seq
"""
"""Return the streamed parts of a run's unfinished answers, by step."""
