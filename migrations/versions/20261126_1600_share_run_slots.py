"""Let a process claim runs of all tenants except those that hold their share of its slots.

The function with four parameters stays for processes of the previous release.

Revision: 20261126_1600
Revises: 20261125_0300
"""

from alembic import op

revision = "20261126_1600"
down_revision = "20261125_0300"
branch_labels = None
depends_on = None

QUEUED = "r.tenant_id = t.tenant_id AND r.status = 'queued'"
NEEDS_NO_KEY = "(r.concurrency_key IS NULL OR r.started_at IS NOT NULL)"
OF_KEYS = "r.concurrency_key IS NOT NULL"
IN_TIME = " AND (r.deadline IS NULL OR r.deadline > now_at)"
READY = """(only_run IS NULL OR r.run_id = only_run) AND r.queued_at <= now_at
                    AND r.tenant_id || E'\\n' || r.run_id <> ALL(busy)"""
HELD = """(SELECT count(*) FROM runs held WHERE held.tenant_id = t.tenant_id
                        AND held.concurrency_key = r.concurrency_key
                        AND held.started_at IS NOT NULL AND held.finished_at IS NULL)"""
IN_ORDER = "ORDER BY r.priority DESC, r.queued_at LIMIT"

EVERY_KEY = f"""
                (SELECT r.* FROM (SELECT r.* FROM runs r WHERE {QUEUED} {IN_ORDER} 100) r
                WHERE {READY}{IN_TIME} AND ({NEEDS_NO_KEY} OR {HELD} < r.concurrency_limit)
                {IN_ORDER} 1)
                UNION ALL
                (WITH RECURSIVE keys AS (
                    (SELECT r.concurrency_key, r.concurrency_limit FROM runs r
                    WHERE {QUEUED} AND {OF_KEYS} ORDER BY 1, 2 LIMIT 1)
                    UNION ALL
                    SELECT following.* FROM keys k, LATERAL (
                        SELECT r.concurrency_key, r.concurrency_limit FROM runs r
                        WHERE {QUEUED} AND {OF_KEYS} AND (r.concurrency_key, r.concurrency_limit)
                            > (k.concurrency_key, k.concurrency_limit)
                        ORDER BY 1, 2 LIMIT 1
                    ) following
                )
                SELECT r.* FROM (
                    (SELECT r.* FROM runs r
                    WHERE {QUEUED} AND {READY}{IN_TIME} AND {NEEDS_NO_KEY}
                    {IN_ORDER} 1)
                    UNION ALL
                    SELECT first.* FROM (
                        SELECT * FROM keys r WHERE {HELD} < r.concurrency_limit
                    ) free, LATERAL (
                        SELECT r.* FROM runs r
                        WHERE {QUEUED} AND {READY}{IN_TIME} AND r.started_at IS NULL
                            AND r.concurrency_key = free.concurrency_key
                            AND r.concurrency_limit = free.concurrency_limit
                        {IN_ORDER} 1
                    ) first
                ) r {IN_ORDER} 1)"""
"""The first part checks the first 100 queued runs; the second part runs only if it finds none."""

CLAIM = """
CREATE FUNCTION caseworker_claim(
    worker text, usual_max_running integer, only_tenant text, only_run text, excluded text[]
) RETURNS SETOF runs LANGUAGE plpgsql AS $$
DECLARE
    next record;
    busy text[] := '{}';
    locked text[] := excluded;
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
            FROM ($head
            ) found LIMIT 1
        ) head
        WHERE (only_tenant IS NULL OR t.tenant_id = only_tenant)
            AND (most.runs IS NULL OR running.runs < most.runs) AND t.tenant_id <> ALL(locked)
        ORDER BY running.runs, head.queued_at LIMIT 1;
        IF NOT FOUND THEN
            RETURN;
        END IF;
        busy := busy || (next.tenant_id || E'\\n' || next.run_id);
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
END $$
"""

PLAN_ONCE = """ALTER FUNCTION caseworker_claim(text, integer, text, text, text[])
SET plan_cache_mode = force_generic_plan"""
"""Uses a generic plan: planning takes longer than claiming, and parameters do not change it."""


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(CLAIM.replace("$head", EVERY_KEY))
    op.execute(PLAN_ONCE)


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DROP FUNCTION caseworker_claim(text, integer, text, text, text[])")
