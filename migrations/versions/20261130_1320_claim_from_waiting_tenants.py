"""Claim runs from a table of the tenants that wait, instead of searching all of them.

``waiting_tenants`` has the times from which claims examine a tenant. Triggers insert a row when a
run is queued, and when a run ends or a quota changes while runs of the tenant are queued. A claim
removes the rows of tenants that have no run to start.

No waiting tenant is lost. A transaction that may let a run start holds a shared lock until its
commit, and inserts a row if it sees none. A claim removes rows only under the exclusive lock, so it
sees the effects of all such transactions. Neither side waits: without the shared lock a transaction
inserts the row in any case, and without the exclusive lock a claim leaves it.

The functions by which earlier releases claim runs do not use the table.

Writes to ``runs`` are blocked while the waiting tenants are inserted and the small tables of jobs,
deaths and schedules are indexed.

Schedules are fired without jobs, so theirs are deleted. Processes of the previous release create
them again for overdue schedules.

Revision: 20261130_1320
Revises: 20261130_1310
"""

from alembic import op

revision = "20261130_1320"
down_revision = "20261130_1310"
branch_labels = None
depends_on = None

TABLES = (
    """CREATE TABLE waiting_tenants (
        tenant_id text NOT NULL,
        due_at timestamptz NOT NULL,
        seq bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
        PRIMARY KEY (tenant_id, due_at, seq)
    ) WITH (autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500)""",
    "CREATE INDEX waiting_tenants_next ON waiting_tenants (due_at, seq)",
)
"""A tenant may have several rows. The tenant with the earliest one was served longest ago."""

LOCK = "(20261130, hashtext({tenant}) & 255)"
"""Lock of a tenant. Tenants share 256 locks, so that no transaction needs more than these."""

HAS = """r.tenant_id = {tenant} AND r.request IS NOT NULL
            AND r.status BETWEEN '{status}' AND '{status}'"""
"""Runs of a tenant with a status. No partial index is for such a condition, so that the plan reads
``runs_by_status`` and no runs of other tenants, however few runs there were when it was made."""

DUE = "w.tenant_id = {tenant} AND (w.tenant_id, w.due_at) <= ({tenant}, now_at)"
"""Rows of a tenant that are due, read from the primary key, and not from the index of all times."""

AWAIT_CLAIM = f"""
CREATE FUNCTION caseworker_await_claim(tenant text, from_at timestamptz) RETURNS void
LANGUAGE plpgsql SET enable_seqscan = off AS $$
DECLARE
    now_at timestamptz := clock_timestamp();
BEGIN
    IF pg_try_advisory_xact_lock_shared{LOCK.format(tenant="tenant")} THEN
        IF from_at > now_at THEN
            PERFORM FROM waiting_tenants WHERE tenant_id = tenant AND due_at = from_at LIMIT 1;
        ELSE
            PERFORM FROM waiting_tenants w WHERE {DUE.format(tenant="tenant")} LIMIT 1;
        END IF;
        IF FOUND OR from_at IS NULL
            AND NOT EXISTS (SELECT FROM runs r WHERE {HAS.format(tenant="tenant", status="queued")})
        THEN
            RETURN;
        END IF;
    END IF;
    INSERT INTO waiting_tenants (tenant_id, due_at) VALUES (tenant, greatest(from_at, now_at));
END $$
"""
"""Lets claims look at a tenant from a time on; null means now, if any of its runs are queued."""

OF_RUN = """
CREATE FUNCTION caseworker_await_claim_of_run() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM caseworker_await_claim(
        NEW.tenant_id, CASE WHEN NEW.status = 'queued' THEN NEW.queued_at END);
    RETURN NULL;
END $$
"""

OF_QUOTA = """
CREATE FUNCTION caseworker_await_claim_of_quota() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM caseworker_await_claim(coalesce(NEW.tenant_id, OLD.tenant_id), NULL);
    RETURN NULL;
END $$
"""

TRIGGERS = (
    """CREATE TRIGGER runs_await_first_claim AFTER INSERT ON runs FOR EACH ROW
    WHEN (NEW.status = 'queued') EXECUTE FUNCTION caseworker_await_claim_of_run()""",
    """CREATE TRIGGER runs_await_claim AFTER UPDATE OF status, queued_at ON runs FOR EACH ROW
    WHEN (NEW.status <> 'running') EXECUTE FUNCTION caseworker_await_claim_of_run()""",
    """CREATE TRIGGER quotas_await_claim AFTER INSERT OR UPDATE OR DELETE ON quotas FOR EACH ROW
    EXECUTE FUNCTION caseworker_await_claim_of_quota()""",
)

AWAIT_CLAIMS = """
CREATE FUNCTION caseworker_await_claims() RETURNS void LANGUAGE sql AS $$
    WITH RECURSIVE tenants AS (
        (SELECT tenant_id FROM runs WHERE status = 'queued' ORDER BY tenant_id LIMIT 1)
        UNION ALL
        SELECT (SELECT r.tenant_id FROM runs r
            WHERE r.status = 'queued' AND r.tenant_id > t.tenant_id
            ORDER BY r.tenant_id LIMIT 1)
        FROM tenants t WHERE t.tenant_id IS NOT NULL
    )
    SELECT caseworker_await_claim(tenant_id, NULL) FROM tenants WHERE tenant_id IS NOT NULL
$$
"""
"""Lets claims look at all tenants with queued runs, for example after the configured quota was
changed."""

QUEUED = "r.tenant_id = t.tenant_id AND r.status = 'queued'"
NEEDS_NO_KEY = "(r.concurrency_key IS NULL OR r.started_at IS NOT NULL)"
OF_KEYS = "r.concurrency_key IS NOT NULL"
READY = """(only_run IS NULL OR r.run_id = only_run) AND r.queued_at <= now_at
                AND (r.deadline IS NULL OR r.deadline > now_at)
                AND (reserves OR r.reserved_cost_usd IS DISTINCT FROM 0)
                AND r.tenant_id || E'\\n' || r.run_id <> ALL(busy)
                AND (suspects IS NULL OR suspects = EXISTS (
                    SELECT FROM deaths d WHERE d.tenant_id = r.tenant_id AND d.run_id = r.run_id
                        AND d.suspect))"""
HELD = """(SELECT count(*) FROM runs held WHERE held.tenant_id = t.tenant_id
                    AND held.concurrency_key = r.concurrency_key
                    AND held.started_at IS NOT NULL AND held.finished_at IS NULL)"""
IN_ORDER = "ORDER BY r.priority DESC, r.queued_at LIMIT"

HEAD = f"""
            (SELECT r.* FROM (SELECT r.* FROM runs r WHERE {QUEUED} {IN_ORDER} 100) r
            WHERE {READY} AND ({NEEDS_NO_KEY} OR {HELD} < r.concurrency_limit)
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
            ), priorities AS (
                (SELECT r.priority FROM runs r WHERE {QUEUED} AND {NEEDS_NO_KEY}
                ORDER BY 1 DESC LIMIT 1)
                UNION ALL
                SELECT lower.* FROM priorities p, LATERAL (
                    SELECT r.priority FROM runs r
                    WHERE {QUEUED} AND {NEEDS_NO_KEY} AND r.priority < p.priority
                    ORDER BY 1 DESC LIMIT 1
                ) lower
            )
            SELECT r.* FROM (
                (SELECT first.* FROM priorities p, LATERAL (
                    SELECT r.* FROM runs r
                    WHERE {QUEUED} AND {READY} AND {NEEDS_NO_KEY} AND r.priority = p.priority
                    ORDER BY r.queued_at LIMIT 1
                ) first LIMIT 1)
                UNION ALL
                SELECT first.* FROM (
                    SELECT * FROM keys r WHERE {HELD} < r.concurrency_limit
                ) free, LATERAL (
                    SELECT r.* FROM runs r
                    WHERE {QUEUED} AND {READY} AND r.started_at IS NULL
                        AND r.concurrency_key = free.concurrency_key
                        AND r.concurrency_limit = free.concurrency_limit
                    {IN_ORDER} 1
                ) first
            ) r {IN_ORDER} 1)"""
"""The run of a tenant that is next.

The first part checks the first 100 queued runs; the second part runs only if it finds none.
"""

NEXT = f"""LEFT JOIN LATERAL (
            SELECT q.tenant_id, q.max_running FROM quotas q WHERE q.tenant_id = t.tenant_id LIMIT 1
        ) q ON true
        CROSS JOIN LATERAL (SELECT CASE WHEN q.tenant_id IS NULL THEN usual_max_running
            ELSE q.max_running END AS runs) most
        CROSS JOIN LATERAL (SELECT count(*) AS runs FROM runs r
            WHERE {HAS.format(tenant="t.tenant_id", status="running")}
        ) running
        LEFT JOIN LATERAL (
            SELECT r.run_id, r.priority, r.queued_at, r.concurrency_key, r.concurrency_limit,
                r.started_at
            FROM ({HEAD}
            ) r WHERE most.runs IS NULL OR running.runs < most.runs LIMIT 1
        ) head ON true"""
"""Joins the limit of each tenant ``t``, its running runs, and the run that is next, if any.

LATERAL with LIMIT finds the quotas one by one; the plan of a join might read those of all tenants.
"""

LOOKED_AT = 16
"""Number of tenants among which a claim chooses. The one served longest ago is the first."""

CLAIM = f"""
CREATE OR REPLACE FUNCTION caseworker_claim(
    worker text, usual_max_running integer, only_tenant text, only_run text, excluded text[],
    reserves boolean, suspects boolean
) RETURNS SETOF runs LANGUAGE plpgsql
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
    next record;
    chosen text;
    busy text[] := '{{}}';
    met text[] := '{{}}';
    locked text[] := excluded;
    blocked text[] := '{{}}';
    keeps_one boolean := false;
    any_tenant boolean := only_tenant IS NULL AND suspects IS NOT TRUE;
    tenants integer;
    looks integer := 0;
    after_at timestamptz := '-infinity';
    after_seq bigint := 0;
    last_at timestamptz;
    last_seq bigint;
    looked_at timestamptz;
    now_at timestamptz := clock_timestamp();
BEGIN
    <<looking>> WHILE looks < 50 LOOP
        tenants := 0;
        chosen := NULL;
        FOR next IN
            SELECT t.*, head.*, most.runs AS most, count(*) OVER () AS tenants FROM (
                SELECT only_tenant AS tenant_id, NULL::timestamptz AS due_at, NULL::bigint AS seq
                WHERE only_tenant IS NOT NULL AND only_tenant <> ALL(locked)
                UNION ALL
                SELECT DISTINCT d.tenant_id, NULL::timestamptz, NULL::bigint
                FROM deaths d JOIN runs r USING (tenant_id, run_id)
                WHERE only_tenant IS NULL AND suspects AND d.suspect AND r.status = 'queued'
                    AND d.tenant_id <> ALL(locked)
                UNION ALL
                (SELECT w.tenant_id, w.due_at, w.seq FROM waiting_tenants w
                WHERE any_tenant AND w.due_at <= now_at AND w.tenant_id <> ALL(locked)
                    AND (w.due_at, w.seq) > (after_at, after_seq)
                ORDER BY w.due_at, w.seq LIMIT {LOOKED_AT})
            ) t {NEXT}
            ORDER BY head.run_id IS NOT NULL,
                CASE WHEN head.run_id IS NOT NULL
                    THEN running.runs + cardinality(array_positions(met, t.tenant_id)) END,
                t.due_at, t.seq, head.queued_at
        LOOP
            tenants := next.tenants;
            IF next.run_id IS NULL THEN
                blocked := blocked || next.tenant_id;
                last_at := next.due_at;
                last_seq := next.seq;
                CONTINUE;
            END IF;
            chosen := next.run_id;
            busy := busy || (next.tenant_id || E'\n' || chosen);
            met := met || next.tenant_id;
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
                CONTINUE WHEN next.most <= (SELECT count(*) FROM runs r
                    WHERE {HAS.format(tenant="next.tenant_id", status="running")});
                CONTINUE WHEN next.started_at IS NULL AND next.concurrency_limit <= (
                    SELECT count(*) FROM runs WHERE tenant_id = next.tenant_id
                        AND concurrency_key = next.concurrency_key
                        AND started_at IS NOT NULL AND finished_at IS NULL);
            END IF;
            PERFORM FROM runs WHERE tenant_id = next.tenant_id AND run_id = chosen
                AND status = 'queued' FOR NO KEY UPDATE SKIP LOCKED;
            IF NOT FOUND THEN
                CONTINUE WHEN tenants > 1 OR next.concurrency_key IS NOT NULL;
                SELECT r.run_id INTO chosen FROM runs r
                WHERE r.tenant_id = next.tenant_id AND r.status = 'queued' AND {NEEDS_NO_KEY}
                    AND r.priority = next.priority AND r.queued_at >= next.queued_at AND {READY}
                ORDER BY r.queued_at LIMIT 1 FOR NO KEY UPDATE OF r SKIP LOCKED;
                IF NOT FOUND THEN
                    chosen := next.run_id;
                    CONTINUE;
                END IF;
            END IF;
            RETURN QUERY UPDATE runs SET status = 'running', worker_id = worker,
                fence = fence + 1, attempts = attempts + 1, claimed_at = now_at,
                started_at = coalesce(started_at, now_at)
            WHERE tenant_id = next.tenant_id AND run_id = chosen AND status = 'queued'
            RETURNING runs.*;
            IF NOT EXISTS (SELECT FROM runs r
                WHERE {HAS.format(tenant="next.tenant_id", status="queued")})
            THEN
                blocked := blocked || next.tenant_id;
            ELSIF any_tenant AND tenants > 1 THEN
                WITH served AS (
                    DELETE FROM waiting_tenants WHERE (tenant_id, due_at, seq) IN (
                        SELECT w.tenant_id, w.due_at, w.seq FROM waiting_tenants w
                        WHERE {DUE.format(tenant="next.tenant_id")} FOR UPDATE SKIP LOCKED
                    ) RETURNING tenant_id
                )
                INSERT INTO waiting_tenants (tenant_id, due_at)
                SELECT tenant_id, clock_timestamp() FROM served LIMIT 1;
            END IF;
            EXIT looking;
        END LOOP;
        IF chosen IS NULL AND tenants = {LOOKED_AT} AND any_tenant THEN
            after_at := last_at;
            after_seq := last_seq;
            CONTINUE;
        END IF;
        looks := looks + 1;
        IF chosen IS NULL THEN
            looked_at := now_at;
            now_at := clock_timestamp();
            after_at := '-infinity';
            EXIT WHEN NOT EXISTS (SELECT FROM runs WHERE status = 'queued'
                AND queued_at > looked_at AND queued_at <= now_at);
        END IF;
    END LOOP;
    IF NOT any_tenant OR NOT reserves OR blocked = '{{}}' THEN
        RETURN;
    END IF;
    SELECT array_agg(tenant_id) INTO blocked
    FROM (SELECT DISTINCT unnest(blocked) AS tenant_id) t
    WHERE pg_try_advisory_xact_lock{LOCK.format(tenant="tenant_id")};
    busy := '{{}}';
    now_at := clock_timestamp();
    DELETE FROM waiting_tenants WHERE (tenant_id, due_at, seq) IN (
        SELECT w.tenant_id, w.due_at, w.seq
        FROM (SELECT unnest(blocked) AS tenant_id OFFSET 0) t {NEXT}
        JOIN waiting_tenants w ON {DUE.format(tenant="t.tenant_id")}
        WHERE head.run_id IS NULL FOR UPDATE OF w SKIP LOCKED
    );
END $$
"""
"""Claims the next run of the tenant with the fewest running runs, among those served longest ago.

The claim then moves the tenant to the end of the queue, unless no second tenant waits. It removes
the examined tenants without a run to start in one statement, because it must read their rows and
their runs in one snapshot.
"""

INDEXES = (
    """CREATE INDEX procrastinate_jobs_at_once ON procrastinate_jobs (queue_name, id)
    WHERE status = 'todo' AND scheduled_at IS NULL""",
    """CREATE INDEX procrastinate_jobs_at_a_time ON procrastinate_jobs (queue_name, scheduled_at)
    WHERE status = 'todo' AND scheduled_at IS NOT NULL""",
    "CREATE INDEX deaths_suspects ON deaths (tenant_id, run_id) WHERE suspect",
    """CREATE INDEX schedules_to_fire ON schedules (next_at, tenant_id, name)
    WHERE next_at IS NOT NULL AND last_error IS NULL""",
    "CREATE INDEX schedules_rejected ON schedules (next_at) WHERE last_error IS NOT NULL",
)

DROP_JOBS = "DELETE FROM procrastinate_jobs WHERE queue_name = 'schedules' AND status = 'todo'"

CLAIM_BEFORE = """
DO $do$ BEGIN EXECUTE (
    SELECT replace(replace(text, $b$reserves boolean$b$, $a$reserves boolean, suspects boolean$a$),
        $b$r.queued_at <= now_at$b$,
        $a$r.queued_at <= now_at AND (suspects IS NULL OR suspects = EXISTS (
            SELECT FROM deaths d WHERE d.tenant_id = r.tenant_id AND d.run_id = r.run_id
                AND d.suspect))$a$)
    FROM pg_get_functiondef(
        'caseworker_claim(text, integer, text, text, text[], boolean)'::regprocedure
    ) AS function(text)
); END $do$
"""
"""Defines the function as revision 20261130_0400 does."""


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for statement in (*TABLES, AWAIT_CLAIM, OF_RUN, OF_QUOTA, *TRIGGERS, AWAIT_CLAIMS):
        op.execute(statement)
    # The triggers block writes to runs until the commit, so no queued run is missed.
    op.execute("SELECT caseworker_await_claims()")
    op.execute(CLAIM)
    for index in INDEXES:
        op.execute(index)
    op.execute(DROP_JOBS)
    op.execute("SELECT caseworker_keep_tenants_apart()")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(CLAIM_BEFORE)
    op.execute("DROP TRIGGER quotas_await_claim ON quotas")
    op.execute("DROP TRIGGER runs_await_claim ON runs")
    op.execute("DROP TRIGGER runs_await_first_claim ON runs")
    for function in ("s()", "_of_quota()", "_of_run()", "(text, timestamptz)"):
        op.execute(f"DROP FUNCTION caseworker_await_claim{function}")
    op.execute("DROP TABLE waiting_tenants")
    for index in INDEXES:
        op.execute(f"DROP INDEX {index.split()[2]}")
