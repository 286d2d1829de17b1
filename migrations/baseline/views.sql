CREATE VIEW graphs WITH (security_invoker='true') AS
 SELECT tenant_id,
    name,
    version,
    description,
    definition,
    uses,
    sha256,
    size_bytes,
    created_at
   FROM definitions
  WHERE (kind = 'graph');

CREATE VIEW journal WITH (security_invoker='true') AS
 SELECT calls.tenant_id,
    calls.run_id,
    calls.seq,
    calls.status,
    calls.request_hash,
    calls.call_key,
    calls.outcome,
        CASE
            WHEN (calls.brief IS NULL) THEN calls.charge
            ELSE ( SELECT COALESCE(jsonb_object_agg(COALESCE(names.name, part.key), part.value), '{}'::jsonb) AS "coalesce"
               FROM (jsonb_each((read.list -> 9)) part(key, value)
                 LEFT JOIN ( VALUES ('t','tokens'), ('s','seconds'), ('p','steps'), ('a','api_calls'), ('c','cost_usd'), ('m','llm_calls_small'), ('b','llm_calls_big'), ('o','tool_calls'), ('r','turns'), ('e','tokens_estimated'), ('f','cost_usd_estimated'), ('u','unpriced_calls')) names(letter, name) ON ((names.letter = part.key))))
        END AS charge,
        CASE
            WHEN (calls.brief IS NULL) THEN calls.node
            ELSE jsonb_build_object('node_id', ('n' || lpad((calls.seq)::text, GREATEST(6, length((calls.seq)::text)), '0')), 'parent_id', ('n' || lpad((read.list ->> 4), GREATEST(6, length((read.list ->> 4))), '0')), 'kind', (read.list -> 0), 'name', (read.list -> 1), 'start_ts_ms', (read.list -> 2), 'end_ts_ms', (((read.list ->> 2))::bigint + ((read.list ->> 3))::bigint), 'status', calls.status, 'model', (read.list -> 5), 'retries_used', COALESCE((read.list -> 11), '0'::jsonb), 'cost_usd', (read.list -> 6), 'tokens_in', (read.list -> 7), 'tokens_out', (read.list -> 8), 'stop_reason', (read.list -> 12), 'error_class', (read.list -> 13), 'metadata',
            CASE
                WHEN ((calls.call_key IS NULL) OR ((read.list ->> 0) = 'system')) THEN (read.list -> 10)
                ELSE ((read.list -> 10) || jsonb_build_object('call_key', calls.call_key))
            END)
        END AS node,
    calls.value,
        CASE
            WHEN (json_typeof(calls.request) = 'array') THEN json_build_object('messages', ( SELECT json_agg(
                    CASE json_array_length(each.message)
                        WHEN 1 THEN json_build_object('role', 'assistant', 'reply_of', (each.message -> 0))
                        ELSE json_build_object('role', 'tool', 'tool_call_id', (each.message -> 0), 'tool_name', (each.message -> 1), 'result_of', (each.message -> 2))
                    END ORDER BY each.place) AS json_agg
               FROM json_array_elements(calls.request) WITH ORDINALITY each(message, place)
              WHERE (each.place > 2)), 'after', json_build_object('call_key', (calls.request -> 0), 'messages', (calls.request -> 1)))
            ELSE calls.request
        END AS request
   FROM (calls
     LEFT JOIN LATERAL ( SELECT (calls.brief)::jsonb AS list
         OFFSET 0) read ON (true));
