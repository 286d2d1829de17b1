-- Claims the next queued run for a worker. It belongs to the tenant with the fewest running runs; among its runs the
-- highest priority comes first, then the longest wait. A null only_tenant or only_run means any.
CREATE OR REPLACE FUNCTION caseworker_claim(worker text, usual_max_running integer, only_tenant text, only_run text) RETURNS SETOF runs
    LANGUAGE plpgsql
    SET plan_cache_mode TO 'force_generic_plan'
    AS $$
DECLARE
    next record;
    busy text[] := '{}';
    locked text[] := '{}';
    keeps_one boolean := false;
    now_at timestamptz := clock_timestamp();
BEGIN
    FOR attempt IN 1..50 LOOP
        WITH RECURSIVE tenants AS (
            (SELECT tenant_id FROM runs WHERE status = 'queued' ORDER BY tenant_id LIMIT 1)
            UNION ALL
            SELECT (SELECT r.tenant_id FROM runs r
                WHERE r.status = 'queued' AND r.tenant_id > t.tenant_id
                ORDER BY r.tenant_id LIMIT 1)
            FROM tenants t WHERE t.tenant_id IS NOT NULL
        )
        SELECT head.*, running.runs AS running, most.runs AS most INTO next
        FROM tenants t
        LEFT JOIN quotas q ON q.tenant_id = t.tenant_id
        CROSS JOIN LATERAL (SELECT CASE WHEN q.tenant_id IS NULL THEN usual_max_running
            ELSE q.max_running END AS runs) most
        CROSS JOIN LATERAL (SELECT count(*) AS runs FROM runs r
            WHERE r.tenant_id = t.tenant_id AND r.status = 'running' AND r.request IS NOT NULL
        ) running
        CROSS JOIN LATERAL (
            SELECT found.tenant_id, found.run_id, found.queued_at, found.concurrency_key,
                found.concurrency_limit, found.started_at
            FROM (
                (SELECT r.* FROM (SELECT r.* FROM runs r WHERE r.tenant_id = t.tenant_id AND r.status = 'queued' ORDER BY r.priority DESC, r.queued_at LIMIT 100) r
                WHERE (only_run IS NULL OR r.run_id = only_run) AND r.queued_at <= now_at
                    AND r.tenant_id || E'\n' || r.run_id <> ALL(busy) AND (r.deadline IS NULL OR r.deadline > now_at) AND ((r.concurrency_key IS NULL OR r.started_at IS NOT NULL) OR (SELECT count(*) FROM runs held WHERE held.tenant_id = t.tenant_id
                        AND held.concurrency_key = r.concurrency_key
                        AND held.started_at IS NOT NULL AND held.finished_at IS NULL) < r.concurrency_limit)
                ORDER BY r.priority DESC, r.queued_at LIMIT 1)
                UNION ALL
                (WITH RECURSIVE keys AS (
                    (SELECT r.concurrency_key, r.concurrency_limit FROM runs r
                    WHERE r.tenant_id = t.tenant_id AND r.status = 'queued' AND r.concurrency_key IS NOT NULL ORDER BY 1, 2 LIMIT 1)
                    UNION ALL
                    SELECT following.* FROM keys k, LATERAL (
                        SELECT r.concurrency_key, r.concurrency_limit FROM runs r
                        WHERE r.tenant_id = t.tenant_id AND r.status = 'queued' AND r.concurrency_key IS NOT NULL AND (r.concurrency_key, r.concurrency_limit)
                            > (k.concurrency_key, k.concurrency_limit)
                        ORDER BY 1, 2 LIMIT 1
                    ) following
                )
                SELECT r.* FROM (
                    (SELECT r.* FROM runs r
                    WHERE r.tenant_id = t.tenant_id AND r.status = 'queued' AND (only_run IS NULL OR r.run_id = only_run) AND r.queued_at <= now_at
                    AND r.tenant_id || E'\n' || r.run_id <> ALL(busy) AND (r.deadline IS NULL OR r.deadline > now_at) AND (r.concurrency_key IS NULL OR r.started_at IS NOT NULL)
                    ORDER BY r.priority DESC, r.queued_at LIMIT 1)
                    UNION ALL
                    SELECT first.* FROM (
                        SELECT * FROM keys r WHERE (SELECT count(*) FROM runs held WHERE held.tenant_id = t.tenant_id
                        AND held.concurrency_key = r.concurrency_key
                        AND held.started_at IS NOT NULL AND held.finished_at IS NULL) < r.concurrency_limit
                    ) free, LATERAL (
                        SELECT r.* FROM runs r
                        WHERE r.tenant_id = t.tenant_id AND r.status = 'queued' AND (only_run IS NULL OR r.run_id = only_run) AND r.queued_at <= now_at
                    AND r.tenant_id || E'\n' || r.run_id <> ALL(busy) AND (r.deadline IS NULL OR r.deadline > now_at) AND r.started_at IS NULL
                            AND r.concurrency_key = free.concurrency_key
                            AND r.concurrency_limit = free.concurrency_limit
                        ORDER BY r.priority DESC, r.queued_at LIMIT 1
                    ) first
                ) r ORDER BY r.priority DESC, r.queued_at LIMIT 1)
            ) found LIMIT 1
        ) head
        WHERE (only_tenant IS NULL OR t.tenant_id = only_tenant)
            AND (most.runs IS NULL OR running.runs < most.runs) AND t.tenant_id <> ALL(locked)
        ORDER BY running.runs, head.queued_at LIMIT 1;
        IF NOT FOUND THEN
            RETURN;
        END IF;
        busy := busy || (next.tenant_id || E'\n' || next.run_id);
        IF next.most IS NOT NULL OR next.concurrency_key IS NOT NULL THEN
            IF keeps_one THEN
                IF NOT pg_try_advisory_xact_lock(hashtextextended(next.tenant_id, 2)) THEN
                    locked := locked || next.tenant_id;
                    CONTINUE;
                END IF;
            ELSE
                PERFORM pg_advisory_xact_lock(hashtextextended(next.tenant_id, 2));
                keeps_one := true;
            END IF;
            CONTINUE WHEN next.most <= (SELECT count(*) FROM runs
                WHERE tenant_id = next.tenant_id AND status = 'running' AND request IS NOT NULL);
            CONTINUE WHEN next.started_at IS NULL AND next.concurrency_limit <= (
                SELECT count(*) FROM runs WHERE tenant_id = next.tenant_id
                    AND concurrency_key = next.concurrency_key
                    AND started_at IS NOT NULL AND finished_at IS NULL);
        END IF;
        PERFORM FROM runs WHERE tenant_id = next.tenant_id AND run_id = next.run_id
            AND status = 'queued' FOR NO KEY UPDATE SKIP LOCKED;
        CONTINUE WHEN NOT FOUND;
        RETURN QUERY UPDATE runs SET status = 'running', worker_id = worker, fence = fence + 1,
            attempts = attempts + 1, claimed_at = now_at, started_at = coalesce(started_at, now_at)
        WHERE tenant_id = next.tenant_id AND run_id = next.run_id AND status = 'queued'
        RETURNING runs.*;
        RETURN;
    END LOOP;
END $$;
