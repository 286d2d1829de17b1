"""Limit tenants, order queued runs, and let runs share a concurrency key.

``caseworker_claim`` takes the queued run that is next. It is a function because each of its
statements must see what others have committed while it waited for a lock. It waits for one tenant
at most, and holds no run meanwhile: whoever accepts a run holds its tenant, and may wait for a run.

Writes to ``runs`` wait while its indexes are built; they hold queued runs, and holders of keys.

Revision: 20261122_2500
Revises: 20261122_2310
"""

from alembic import op

revision = "20261122_2500"
down_revision = "20261122_2310"
branch_labels = None
depends_on = None

COLUMNS = """
ALTER TABLE runs
    ADD COLUMN priority smallint NOT NULL DEFAULT 0,
    ADD COLUMN concurrency_key text,
    ADD COLUMN concurrency_limit integer,
    ADD COLUMN deadline timestamptz,
    ADD COLUMN reserved_cost_usd numeric
"""

INDEXES = (
    """CREATE INDEX runs_next ON runs (tenant_id, priority DESC, queued_at)
       WHERE status = 'queued'""",
    """CREATE INDEX runs_holding_keys ON runs (tenant_id, concurrency_key)
       WHERE concurrency_key IS NOT NULL AND started_at IS NOT NULL AND finished_at IS NULL""",
    """CREATE INDEX runs_unbegun_deadlines ON runs (deadline)
       WHERE deadline IS NOT NULL AND status = 'queued'""",
)

TABLES = (
    """CREATE TABLE quotas (
        tenant_id text PRIMARY KEY,
        max_running integer CHECK (max_running >= 0),
        max_queued integer CHECK (max_queued >= 0),
        max_runs_per_minute integer CHECK (max_runs_per_minute >= 0),
        max_cost_usd_per_day numeric CHECK (max_cost_usd_per_day >= 0),
        max_cost_usd_per_month numeric CHECK (max_cost_usd_per_month >= 0),
        updated_at timestamptz NOT NULL DEFAULT clock_timestamp()
    )""",
    """CREATE TABLE quota_rates (
        tenant_id text PRIMARY KEY,
        available double precision NOT NULL,
        refilled_at timestamptz NOT NULL DEFAULT clock_timestamp()
    )""",
    """CREATE TABLE quota_days (
        tenant_id text NOT NULL,
        day date NOT NULL,
        cost_usd numeric NOT NULL DEFAULT 0,
        reserved_usd numeric NOT NULL DEFAULT 0,
        PRIMARY KEY (tenant_id, day)
    )""",
)

CLAIM = """
CREATE FUNCTION caseworker_claim(
    worker text, usual_max_running integer, only_tenant text, only_run text
) RETURNS SETOF runs LANGUAGE plpgsql AS $$
DECLARE
    next record;
    busy text[] := '{}';
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
            SELECT r.tenant_id, r.run_id, r.queued_at, r.concurrency_key, r.concurrency_limit,
                r.started_at
            FROM runs r
            WHERE r.tenant_id = t.tenant_id AND r.status = 'queued' AND r.queued_at <= now_at
                AND (only_run IS NULL OR r.run_id = only_run)
                AND r.tenant_id || E'\\n' || r.run_id <> ALL(busy)
                AND (r.concurrency_key IS NULL OR r.started_at IS NOT NULL
                    OR (SELECT count(*) FROM runs held
                        WHERE held.tenant_id = r.tenant_id
                            AND held.concurrency_key = r.concurrency_key
                            AND held.started_at IS NOT NULL AND held.finished_at IS NULL
                    ) < r.concurrency_limit)
            ORDER BY r.priority DESC, r.queued_at LIMIT 1
        ) head
        WHERE (only_tenant IS NULL OR t.tenant_id = only_tenant)
            AND (most.runs IS NULL OR running.runs < most.runs)
        ORDER BY running.runs, head.queued_at LIMIT 1;
        IF NOT FOUND THEN
            RETURN;
        END IF;
        busy := busy || (next.tenant_id || E'\\n' || next.run_id);
        IF next.most IS NOT NULL OR next.concurrency_key IS NOT NULL THEN
            IF keeps_one THEN
                CONTINUE WHEN NOT pg_try_advisory_xact_lock(hashtextextended(next.tenant_id, 2));
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


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for statement in (COLUMNS, *INDEXES, *TABLES, CLAIM):
        op.execute(statement)
    op.execute("SELECT caseworker_keep_tenants_apart()")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DROP FUNCTION caseworker_claim")
    for table in ("quota_days", "quota_rates", "quotas"):
        op.execute(f"DROP TABLE {table}")
    for index in ("runs_next", "runs_holding_keys", "runs_unbegun_deadlines"):
        op.execute(f"DROP INDEX {index}")
    op.execute(
        "ALTER TABLE runs DROP COLUMN priority, DROP COLUMN concurrency_key,"
        " DROP COLUMN concurrency_limit, DROP COLUMN deadline, DROP COLUMN reserved_cost_usd"
    )
