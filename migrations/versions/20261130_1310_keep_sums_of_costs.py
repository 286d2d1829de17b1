"""Keep the costs of ended runs, and their sums by hour and day.

Triggers store the costs of a run when the transaction that ends it commits, so the runs that
processes of the previous release end are included. Costs of runs that ended before this revision
are stored in the background: ``cost_backfill`` has, for each tenant, the time before which the
costs of runs are not complete yet.

Writes to ``runs`` are blocked for an instant: no rows are read while the triggers are created.

Revision: 20261130_1310
Revises: 20261130_1300
"""

from alembic import op

revision = "20261130_1310"
down_revision = "20261130_1300"
branch_labels = None
depends_on = None

TABLES = (
    """CREATE TABLE run_costs (
        tenant_id text NOT NULL,
        run_id text NOT NULL,
        part integer NOT NULL,
        created_at timestamptz NOT NULL,
        status text NOT NULL,
        seconds double precision,
        stop_kind text,
        stop_detail text,
        agent text,
        model text,
        of_model boolean NOT NULL,
        llm_calls bigint NOT NULL,
        tokens bigint NOT NULL,
        cost_usd numeric NOT NULL,
        cost_usd_estimated numeric NOT NULL,
        summed boolean NOT NULL DEFAULT false,
        PRIMARY KEY (tenant_id, run_id, part)
    ) WITH (fillfactor = 90, autovacuum_vacuum_scale_factor = 0.02)""",
    """CREATE INDEX run_costs_newest ON run_costs (tenant_id, created_at)
        INCLUDE (part, status, seconds)""",
    """CREATE INDEX run_costs_unsummed ON run_costs (tenant_id, created_at) WHERE NOT summed""",
    """CREATE TABLE cost_sums (
        tenant_id text NOT NULL,
        span text NOT NULL,
        start timestamptz NOT NULL,
        status text NOT NULL,
        stop_kind text,
        stop_detail text,
        agent text,
        model text,
        of_model boolean NOT NULL,
        runs bigint NOT NULL,
        parts bigint NOT NULL,
        llm_calls bigint NOT NULL,
        tokens bigint NOT NULL,
        cost_usd numeric NOT NULL,
        cost_usd_estimated numeric NOT NULL,
        merged boolean NOT NULL DEFAULT false,
        seq bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
        PRIMARY KEY (tenant_id, span, start, seq),
        CONSTRAINT cost_sums_span_known CHECK (span IN ('hour', 'day'))
    ) WITH (autovacuum_vacuum_scale_factor = 0.02)""",
    """CREATE INDEX cost_sums_unmerged ON cost_sums (tenant_id, span, start) WHERE NOT merged""",
    """CREATE TABLE cost_backfill (
        tenant_id text NOT NULL,
        before timestamptz NOT NULL,
        PRIMARY KEY (tenant_id)
    )""",
)
"""A run has one row in ``run_costs`` for each model that it called, and at least one. The first
row, with ``part`` 1, counts the run. Rows of ``cost_sums`` are added up, so a run whose costs
change or that is deleted adds a row with negative numbers."""

COSTS = """
CREATE FUNCTION caseworker_costs_of(tenant text, run text) RETURNS TABLE (
    part integer, model text, of_model boolean, llm_calls bigint, tokens bigint,
    cost_usd numeric, cost_usd_estimated numeric
) LANGUAGE sql STABLE AS $$
    SELECT part, model, of_model, llm_calls, tokens, cost_usd, cost_usd_estimated
    FROM (
        SELECT row_number() OVER (ORDER BY of_model DESC, model)::integer AS part, model, of_model,
            coalesce(sum(llm_calls), 0)::bigint AS llm_calls,
            coalesce(sum(tokens), 0)::bigint AS tokens, coalesce(sum(cost_usd), 0) AS cost_usd,
            coalesce(sum(cost_usd_estimated), 0) AS cost_usd_estimated
        FROM (
            SELECT model, model IS NOT NULL OR amounts ?| '{t,tokens,c,cost_usd}' AS of_model,
                CASE WHEN amounts ?| '{m,b,llm_calls_small,llm_calls_big}' THEN greatest(1,
                    coalesce(amounts ->> 'm', amounts ->> 'llm_calls_small', '0')::bigint
                    + coalesce(amounts ->> 'b', amounts ->> 'llm_calls_big', '0')::bigint)
                END AS llm_calls,
                coalesce(amounts ->> 't', amounts ->> 'tokens')::bigint AS tokens,
                coalesce(amounts ->> 'c', amounts ->> 'cost_usd')::numeric AS cost_usd,
                coalesce(amounts ->> 'f', amounts ->> 'cost_usd_estimated')::numeric
                    AS cost_usd_estimated
            FROM (
                SELECT CASE WHEN list IS NULL THEN node ->> 'model' ELSE list ->> 5 END AS model,
                    coalesce(CASE WHEN list IS NULL THEN charge ELSE list -> 9 END, '{}') AS amounts
                FROM (
                    SELECT node, charge, brief::jsonb AS list FROM calls
                    WHERE calls.tenant_id = tenant AND calls.run_id = run OFFSET 0
                ) AS call
                UNION ALL SELECT NULL, '{}'
            ) AS charged
        ) AS amount
        GROUP BY model, of_model
    ) AS numbered
    WHERE part = 1 OR of_model OR llm_calls <> 0 OR cost_usd_estimated <> 0
$$
"""
"""Returns the costs of a run by model, from its calls. ``OFFSET 0`` has each call parsed once.

``of_model`` is false for the calls without a model, tokens and cost: they count only in sums that
are not by model. A run without calls has one row of zeros.
"""

ROW = """tenant_id, run_id, part, created_at, status, seconds, stop_kind, stop_detail, agent,
    model, of_model, llm_calls, tokens, cost_usd, cost_usd_estimated"""

VALUES = """run.tenant_id, run.run_id, cost.part, run.created_at, run.status,
    date_part('epoch', run.finished_at - run.started_at), run.stop ->> 'kind',
    coalesce(run.stop ->> 'error_class', run.stop ->> 'dimension'),
    CASE WHEN run.kind IN ('agent', 'external')
        OR run.request #>> '{chat,agent,name}' IS NOT NULL
        THEN coalesce(run.request #>> '{graph_ref,name}', run.request #>> '{chat,agent,name}',
            run.request #>> '{graph,steps,0,data,external,name}') END,
    cost.model, cost.of_model, cost.llm_calls, cost.tokens, cost.cost_usd,
    cost.cost_usd_estimated"""

KEEP = f"""
CREATE FUNCTION caseworker_keep_costs() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND OLD.finished_at IS NOT NULL THEN
        DELETE FROM run_costs WHERE tenant_id = NEW.tenant_id AND run_id = NEW.run_id;
    END IF;
    INSERT INTO run_costs ({ROW})
    SELECT {VALUES.replace("run.", "NEW.")}
    FROM caseworker_costs_of(NEW.tenant_id, NEW.run_id) AS cost;
    RETURN NULL;
END $$
"""

KEEP_COSTS = """
CREATE CONSTRAINT TRIGGER runs_keep_costs_{name} AFTER {events} ON runs
DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (NEW.finished_at IS NOT NULL)
EXECUTE FUNCTION caseworker_keep_costs()
"""
"""Stores the costs of an ended run at the commit: a call may be written after its run."""

ADD = """INSERT INTO cost_sums (tenant_id, span, start, status, stop_kind, stop_detail, agent,
        model, of_model, runs, parts, llm_calls, tokens, cost_usd, cost_usd_estimated)
    SELECT tenant_id, span, date_trunc(span, created_at, 'UTC'), status, stop_kind, stop_detail,
        agent, model, of_model, {sign}count(*) FILTER (WHERE part = 1), {sign}count(*),
        {sign}sum(llm_calls), {sign}sum(tokens), {sign}sum(cost_usd), {sign}sum(cost_usd_estimated)
    FROM {rows}, (VALUES ('hour'), ('day')) AS spans(span)
    GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9"""

SUBTRACT = f"""
CREATE FUNCTION caseworker_subtract_costs() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    {ADD.format(sign="-", rows="(SELECT * FROM removed WHERE summed) AS gone")};
    RETURN NULL;
END $$
"""

SUBTRACT_COSTS = """
CREATE TRIGGER run_costs_subtract AFTER DELETE ON run_costs REFERENCING OLD TABLE AS removed
FOR EACH STATEMENT EXECUTE FUNCTION caseworker_subtract_costs()
"""

SUM = f"""
CREATE FUNCTION caseworker_sum_costs(most integer) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    summed_parts bigint;
    merged_starts bigint;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended('costs', 3)) THEN
        RETURN false;
    END IF;
    WITH batch AS MATERIALIZED (
        SELECT ctid FROM run_costs WHERE NOT summed LIMIT most FOR UPDATE SKIP LOCKED
    ), changed AS (
        UPDATE run_costs c SET summed = true FROM batch WHERE c.ctid = batch.ctid RETURNING c.*
    ), added AS (
        {ADD.format(sign="", rows="changed")}
    )
    SELECT count(*) FROM batch INTO summed_parts;
    WITH changed AS MATERIALIZED (
        SELECT DISTINCT tenant_id, span, start FROM cost_sums WHERE NOT merged LIMIT most / 10
    ), locked AS MATERIALIZED (
        SELECT s.ctid FROM changed JOIN cost_sums s USING (tenant_id, span, start)
        FOR UPDATE OF s SKIP LOCKED
    ), gone AS (
        DELETE FROM cost_sums s USING locked WHERE s.ctid = locked.ctid RETURNING s.*
    ), kept AS (
        INSERT INTO cost_sums (tenant_id, span, start, status, stop_kind, stop_detail, agent, model,
            of_model, runs, parts, llm_calls, tokens, cost_usd, cost_usd_estimated, merged)
        SELECT tenant_id, span, start, status, stop_kind, stop_detail, agent, model, of_model,
            sum(runs), sum(parts), sum(llm_calls), sum(tokens), sum(cost_usd),
            sum(cost_usd_estimated), true
        FROM gone GROUP BY 1, 2, 3, 4, 5, 6, 7, 8, 9 HAVING sum(parts) <> 0
    )
    SELECT count(*) FROM changed INTO merged_starts;
    RETURN summed_parts = most OR merged_starts = most / 10;
END $$
"""
"""Adds rows of ``run_costs`` to the sums, and merges sums. Returns whether there may be more.

Only one process at a time does so. The rows of ``cost_sums`` are only inserted and deleted, so
transactions that insert never wait.
"""

FILL = f"""
CREATE FUNCTION caseworker_fill_costs(most integer) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    pending record;
    oldest timestamptz;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended('costs', 3)) THEN
        RETURN false;
    END IF;
    SELECT tenant_id, before INTO pending FROM cost_backfill ORDER BY before DESC LIMIT 1;
    IF NOT FOUND THEN
        RETURN false;
    END IF;
    SELECT min(created_at) INTO oldest FROM (
        SELECT created_at FROM runs
        WHERE tenant_id = pending.tenant_id AND request IS NOT NULL AND created_at < pending.before
        ORDER BY created_at DESC LIMIT most
    ) AS newest;
    IF oldest IS NULL THEN
        DELETE FROM cost_backfill WHERE tenant_id = pending.tenant_id;
        RETURN true;
    END IF;
    PERFORM FROM runs WHERE tenant_id = pending.tenant_id AND request IS NOT NULL
        AND created_at >= oldest AND created_at < pending.before AND finished_at IS NOT NULL
    ORDER BY run_id FOR NO KEY UPDATE;
    INSERT INTO run_costs ({ROW})
    SELECT {VALUES}
    FROM runs AS run, LATERAL caseworker_costs_of(run.tenant_id, run.run_id) AS cost
    WHERE run.tenant_id = pending.tenant_id AND run.request IS NOT NULL
        AND run.created_at >= oldest AND run.created_at < pending.before
        AND run.finished_at IS NOT NULL AND NOT EXISTS (
            SELECT FROM run_costs k WHERE k.tenant_id = run.tenant_id AND k.run_id = run.run_id
        );
    UPDATE cost_backfill SET before = oldest WHERE tenant_id = pending.tenant_id;
    RETURN true;
END $$
"""
"""Stores the costs of the newest runs that may lack them. Returns false if no tenant has any.

The runs are locked by an earlier statement than the one that reads their costs. So they can neither
be deleted nor get late costs between the two.
"""

COSTS_OF_ERASED = """DELETE FROM run_costs USING erased
    WHERE run_costs.tenant_id = erased.tenant_id AND run_costs.run_id = erased.run_id;
    """

REDEFINE_ERASE = """
DO $do$ BEGIN EXECUTE (
    SELECT replace(text, $b${before}$b$, $a${after}$a$)
    FROM pg_get_functiondef('caseworker_erase_with_runs()'::regprocedure) AS function(text)
); END $do$
"""
"""Redefines the function that deletes rows without a foreign key to their deleted runs."""

REMAINING = """
INSERT INTO cost_backfill (tenant_id, before)
WITH RECURSIVE tenant AS (
    SELECT min(tenant_id) AS tenant_id FROM runs
    UNION ALL
    SELECT (SELECT min(runs.tenant_id) FROM runs WHERE runs.tenant_id > tenant.tenant_id)
    FROM tenant WHERE tenant.tenant_id IS NOT NULL
)
SELECT tenant_id, 'infinity' FROM tenant WHERE tenant_id IS NOT NULL
"""


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for statement in (*TABLES, COSTS, KEEP, SUBTRACT, SUBTRACT_COSTS, SUM, FILL):
        op.execute(statement)
    returns = "RETURN NULL;"
    op.execute(REDEFINE_ERASE.format(before=returns, after=COSTS_OF_ERASED + returns))
    op.execute("SELECT caseworker_keep_tenants_apart()")
    op.execute(KEEP_COSTS.format(name="insert", events="INSERT"))
    changes = "UPDATE OF status, created_at, started_at, finished_at, usage, stop"
    op.execute(KEEP_COSTS.format(name="update", events=changes))
    op.execute(REMAINING)


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DROP FUNCTION caseworker_keep_costs() CASCADE")
    op.execute(REDEFINE_ERASE.format(before=COSTS_OF_ERASED, after=""))
    op.execute("DROP TABLE run_costs, cost_sums, cost_backfill")
    for function in (
        "costs_of(text, text)",
        "subtract_costs()",
        "sum_costs(integer)",
        "fill_costs(integer)",
    ):
        op.execute(f"DROP FUNCTION caseworker_{function}")
