-- Takes a rate slot of a model for a tenant and returns 0, or returns the seconds to wait.
CREATE OR REPLACE FUNCTION caseworker_take_turn(of_model text, tenant text, by_process text, of_requests double precision, burst_requests double precision, rate_requests double precision, of_tokens double precision, burst_tokens double precision, rate_tokens double precision, unused_tokens double precision, longest_wait double precision, at_time timestamptz) RETURNS double precision
    LANGUAGE plpgsql
    AS $$
DECLARE
    model provider_limits;
    ahead record;
    now_at timestamptz;
    passed double precision;
    mine double precision;
    wait double precision;
    big_tokens double precision := least(of_tokens, burst_tokens);
BEGIN
    LOOP
        SELECT * INTO model FROM provider_limits l WHERE l.model = of_model FOR UPDATE;
        EXIT WHEN FOUND;
        INSERT INTO provider_limits (model, requests, tokens, refilled_at) VALUES (
            of_model, burst_requests, burst_tokens, coalesce(at_time, clock_timestamp())
        ) ON CONFLICT DO NOTHING;
    END LOOP;
    now_at := coalesce(at_time, clock_timestamp());
    passed := greatest(0, extract(epoch FROM now_at - model.refilled_at));
    model.requests := least(burst_requests, model.requests + passed * rate_requests);
    model.tokens := least(burst_tokens, model.tokens + passed * rate_tokens + unused_tokens);

    SELECT t.place INTO mine FROM provider_turns t
    WHERE t.model = of_model AND t.tenant_id = tenant AND t.process = by_process;
    IF mine IS NULL THEN
        SELECT greatest(model.served, max(t.place))
            + greatest(of_requests / rate_requests, of_tokens / rate_tokens) INTO mine
        FROM provider_turns t WHERE t.model = of_model AND t.tenant_id = tenant;
    END IF;
    SELECT coalesce(sum(t.requests), 0) AS requests, coalesce(sum(t.tokens), 0) AS tokens INTO ahead
    FROM provider_turns t
    WHERE t.model = of_model AND t.due_at > now_at - interval '2 seconds'
        AND (t.tenant_id, t.process) <> (tenant, by_process)
        AND (t.place, t.tenant_id, t.process) < (mine, tenant, by_process);

    wait := greatest(0, extract(epoch FROM model.refilled_at - now_at)) + greatest(0,
        (ahead.requests + of_requests - model.requests) / rate_requests,
        (ahead.tokens + big_tokens - model.tokens) / rate_tokens);
    IF wait < 1e-6 THEN
        wait := 0;
        model.requests := model.requests - of_requests;
        model.tokens := model.tokens - of_tokens;
        model.served := greatest(model.served, mine);
        DELETE FROM provider_turns t
        WHERE t.model = of_model AND t.tenant_id = tenant AND t.process = by_process;
    ELSE
        wait := least(wait, longest_wait);
        INSERT INTO provider_turns AS t VALUES (of_model, tenant, by_process, mine, of_requests,
            big_tokens, now_at + make_interval(secs => wait))
        ON CONFLICT ON CONSTRAINT provider_turns_pkey DO UPDATE SET requests = excluded.requests,
            tokens = excluded.tokens, due_at = excluded.due_at;
        DELETE FROM provider_turns t
        WHERE t.model = of_model AND t.due_at < now_at - interval '1 minute';
    END IF;
    UPDATE provider_limits l SET requests = model.requests, tokens = model.tokens,
        served = model.served, refilled_at = greatest(l.refilled_at, now_at)
    WHERE l.model = of_model;
    RETURN wait;
END $$;
