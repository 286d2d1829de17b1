"""Reserve calls in accounts: limits above runs, such as the quota of a tenant.

A run whose calls reserve in accounts has ``runs.reserved_cost_usd = 0``. Processes of the previous
release do not claim it: the functions that they call skip such runs.

The previous release reads and writes only ``quota_days``. A trigger on ``accounts`` keeps that
table equal to the accounts of tenants, and a trigger on ``quota_days`` redirects additions of the
previous release. Both lock a row of ``accounts`` before that of ``quota_days``, so they cannot
deadlock. A later release drops them together with ``quota_days``.

Writes to ``quota_days`` are blocked while its rows are copied.

Revision: 20261129_1100
Revises: 20261127_1600
"""

from alembic import op

revision = "20261129_1100"
down_revision = "20261127_1600"
branch_labels = None
depends_on = None

TABLES = (
    """CREATE TABLE accounts (
        tenant_id text NOT NULL,
        account text NOT NULL,
        period date NOT NULL,
        used_cost_usd numeric NOT NULL DEFAULT 0,
        reserved_cost_usd numeric NOT NULL DEFAULT 0,
        used_tokens bigint NOT NULL DEFAULT 0,
        reserved_tokens bigint NOT NULL DEFAULT 0,
        awaited_until timestamptz,
        PRIMARY KEY (tenant_id, account, period)
    ) WITH (fillfactor = 50)""",  # a period is the UTC day in which calls were reserved
    """CREATE TABLE account_holds (
        tenant_id text NOT NULL,
        run_id text NOT NULL,
        seq integer NOT NULL,
        attempt integer NOT NULL,
        account text NOT NULL,
        period date NOT NULL,
        cost_usd numeric NOT NULL,
        tokens bigint NOT NULL,
        PRIMARY KEY (tenant_id, run_id, seq, attempt, account)
    ) WITH (fillfactor = 70)""",
)

LIMITS = """
CREATE FUNCTION caseworker_account_limits(tenant text, account text, today date, usual json)
RETURNS TABLE (period text, since date, until date, dimension text, most numeric)
LANGUAGE sql STABLE AS $$
    SELECT of_account.*
    FROM (
        SELECT max_cost_usd_per_day AS day, max_cost_usd_per_month AS month FROM quotas
        WHERE tenant_id = tenant
        UNION ALL
        SELECT (usual->>'day')::numeric, (usual->>'month')::numeric
        WHERE NOT EXISTS (SELECT FROM quotas WHERE tenant_id = tenant)
    ) quota, date_trunc('month', today) AS month_began, LATERAL (
        VALUES ('day', today, today + 1, 'cost_usd', quota.day),
            ('month', month_began::date, (month_began + interval '1 month')::date, 'cost_usd',
                quota.month)
    ) AS of_account(period, since, until, dimension, most)
    WHERE account = 'tenant' AND of_account.most IS NOT NULL
$$
"""
"""Returns the limits of an account; ``usual`` is the quota of tenants that have none."""

SETTLE = """
CREATE FUNCTION caseworker_settle(settled json) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    changed record;
BEGIN
    IF settled IS NULL THEN
        RETURN;
    END IF;
    PERFORM FROM accounts a WHERE (a.tenant_id, a.account, a.period) IN (
        SELECT h.tenant_id, h.account, h.period
        FROM json_to_recordset(settled) AS s(tenant_id text, run_id text)
        JOIN account_holds h ON h.tenant_id = s.tenant_id AND h.run_id = s.run_id
    ) ORDER BY a.tenant_id, a.account, a.period FOR NO KEY UPDATE;
    FOR changed IN
        WITH released AS (
            DELETE FROM account_holds h USING json_to_recordset(settled) AS s(
                tenant_id text, run_id text, seq integer, attempt integer, cost_usd numeric,
                tokens bigint
            )
            WHERE h.tenant_id = s.tenant_id AND h.run_id = s.run_id
                AND (s.seq IS NULL OR h.seq = s.seq AND h.attempt = s.attempt)
            RETURNING h.*, coalesce(s.cost_usd, h.cost_usd) AS used_cost_usd,
                coalesce(s.tokens, h.tokens) AS used_tokens
        ), total AS (
            SELECT tenant_id, account, period, sum(cost_usd) AS cost_usd, sum(tokens) AS tokens,
                sum(used_cost_usd) AS used_cost_usd, sum(used_tokens) AS used_tokens
            FROM released GROUP BY tenant_id, account, period
        )
        UPDATE accounts a SET used_cost_usd = a.used_cost_usd + t.used_cost_usd,
            reserved_cost_usd = a.reserved_cost_usd - t.cost_usd,
            used_tokens = a.used_tokens + t.used_tokens,
            reserved_tokens = a.reserved_tokens - t.tokens
        FROM total t WHERE a.tenant_id = t.tenant_id AND a.account = t.account
            AND a.period = t.period
        RETURNING a.tenant_id, a.account
    LOOP
        PERFORM pg_notify('caseworker_accounts', json_build_object(
            'tenant', changed.tenant_id, 'account', changed.account)::text)
        WHERE EXISTS (
            SELECT FROM accounts a WHERE a.tenant_id = changed.tenant_id
                AND a.account = changed.account AND a.awaited_until > clock_timestamp()
        );
    END LOOP;
END $$
"""
"""Settles holds at their actual amounts, or at the held ones if these are null.

A row without ``seq`` settles all holds of its run. A hold that is gone was settled before, so a
repeated call changes nothing. Locks the rows of the accounts in order.
"""

RESERVE = """
CREATE FUNCTION caseworker_reserve(settled json, calls json, usual json)
RETURNS TABLE (
    tenant_id text, run_id text, fence integer, seq integer, attempt integer, granted boolean,
    limits json
) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    call record;
    today date := (clock_timestamp() AT TIME ZONE 'UTC')::date;
    fits boolean;
    states json;
BEGIN
    INSERT INTO accounts (tenant_id, account, period)
    SELECT DISTINCT c.tenant_id, a.account, today
    FROM json_to_recordset(calls) AS c(tenant_id text, accounts text[]), unnest(c.accounts)
        AS a(account)
    ORDER BY 1, 2 ON CONFLICT DO NOTHING;
    PERFORM FROM accounts a WHERE (a.tenant_id, a.account, a.period) IN (
        SELECT c.tenant_id, unnest(c.accounts), today - days.ago
        FROM json_to_recordset(calls) AS c(tenant_id text, accounts text[]),
            (VALUES (0), (1)) AS days(ago)
        UNION ALL
        SELECT h.tenant_id, h.account, h.period
        FROM json_to_recordset(settled) AS s(tenant_id text, run_id text)
        JOIN account_holds h ON h.tenant_id = s.tenant_id AND h.run_id = s.run_id
    ) ORDER BY a.tenant_id, a.account, a.period FOR NO KEY UPDATE;
    PERFORM caseworker_settle(settled);
    FOR call IN SELECT * FROM json_to_recordset(calls) AS c(
        number integer, tenant_id text, run_id text, fence integer, seq integer, attempt integer,
        accounts text[], cost_usd numeric, tokens bigint
    ) ORDER BY number LOOP
        SELECT coalesce(bool_and(used + reserved + requested <= most), true),
            json_agg(json_build_object('account', account, 'period', period, 'until', until,
                'dimension', dimension, 'used', used::text, 'reserved', reserved::text,
                'limit', most::text))
        INTO fits, states
        FROM unnest(call.accounts) AS name(account),
            caseworker_account_limits(call.tenant_id, account, today, usual) AS limited,
            LATERAL (
                SELECT sum(used_cost_usd), sum(reserved_cost_usd), sum(used_tokens),
                    sum(reserved_tokens)
                FROM accounts a WHERE a.tenant_id = call.tenant_id
                    AND a.account = name.account AND a.period >= since
            ) AS total(used_cost_usd, reserved_cost_usd, used_tokens, reserved_tokens),
            LATERAL (
                SELECT used_cost_usd, reserved_cost_usd, call.cost_usd WHERE dimension = 'cost_usd'
                UNION ALL
                SELECT used_tokens, reserved_tokens, call.tokens WHERE dimension = 'tokens'
            ) AS amount(used, reserved, requested);
        IF EXISTS (SELECT FROM account_holds h WHERE h.tenant_id = call.tenant_id
            AND h.run_id = call.run_id AND h.seq = call.seq AND h.attempt = call.attempt)
        THEN
            fits := true;
        ELSIF fits THEN
            INSERT INTO account_holds (
                tenant_id, run_id, seq, attempt, account, period, cost_usd, tokens
            )
            SELECT call.tenant_id, call.run_id, call.seq, call.attempt, unnest(call.accounts),
                today, call.cost_usd, call.tokens;
            UPDATE accounts a SET reserved_cost_usd = a.reserved_cost_usd + call.cost_usd,
                reserved_tokens = a.reserved_tokens + call.tokens
            WHERE a.tenant_id = call.tenant_id AND a.account = ANY(call.accounts)
                AND a.period = today;
        ELSE
            UPDATE accounts a SET awaited_until = clock_timestamp() + interval '10 seconds'
            WHERE a.tenant_id = call.tenant_id AND a.account = ANY(call.accounts)
                AND a.period = today;
        END IF;
        RETURN QUERY SELECT call.tenant_id, call.run_id, call.fence, call.seq, call.attempt, fits,
            states;
    END LOOP;
END $$
"""
"""Settles holds, then reserves calls in their accounts, in order, each completely or not at all.

Returns for each call whether it was granted, and the state of each limit before it. A repeated call
is granted and reserves nothing more. Two statements that reserve in the same account are
serialised by the row of the day; around midnight, one of them locks the row of the day before too.
"""

OF_RUN = """
CREATE FUNCTION caseworker_settle_run() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    cost numeric := coalesce(NEW.usage->>'cost_usd', NEW.usage->>'cost_usd_known', '0')::numeric;
BEGIN
    PERFORM caseworker_settle(json_build_array(
        json_build_object('tenant_id', NEW.tenant_id, 'run_id', NEW.run_id)));
    IF OLD.worker_id IS NULL AND NEW.finished_at IS NOT NULL AND cost <> 0 THEN
        UPDATE accounts SET used_cost_usd = used_cost_usd - cost
        WHERE tenant_id = NEW.tenant_id AND account = 'tenant'
            AND period = (NEW.created_at AT TIME ZONE 'UTC')::date;
    END IF;
    RETURN NULL;
END $$
"""
"""Settles the remaining holds of a run at their maximum when it is claimed again or ends.

A statement that ends a run without an owner, of this or the previous release, adds the cost of the
run. Its calls have been counted before, so that cost is subtracted.
"""

SETTLE_RUNS = """
CREATE TRIGGER runs_settle AFTER UPDATE OF status ON runs FOR EACH ROW
WHEN (OLD.reserved_cost_usd = 0 AND NEW.status NOT IN ('queued', 'waiting'))
EXECUTE FUNCTION caseworker_settle_run()
"""

MIRROR = """
CREATE FUNCTION caseworker_mirror_account() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO quota_days (tenant_id, day, cost_usd, reserved_usd)
    VALUES (NEW.tenant_id, NEW.period, NEW.used_cost_usd, NEW.reserved_cost_usd)
    ON CONFLICT (tenant_id, day) DO UPDATE
    SET cost_usd = excluded.cost_usd, reserved_usd = excluded.reserved_usd;
    RETURN NULL;
END $$
"""

MIRROR_ACCOUNTS = """
CREATE TRIGGER accounts_mirror AFTER INSERT OR UPDATE OF used_cost_usd, reserved_cost_usd
ON accounts FOR EACH ROW WHEN (NEW.account = 'tenant')
EXECUTE FUNCTION caseworker_mirror_account()
"""

REDIRECT = """
CREATE FUNCTION caseworker_redirect_quota_day() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO accounts AS a (
        tenant_id, account, period, used_cost_usd, reserved_cost_usd
    ) VALUES (NEW.tenant_id, 'tenant', NEW.day, NEW.cost_usd, NEW.reserved_usd)
    ON CONFLICT (tenant_id, account, period) DO UPDATE SET
        used_cost_usd = a.used_cost_usd + excluded.used_cost_usd,
        reserved_cost_usd = a.reserved_cost_usd + excluded.reserved_cost_usd;
    RETURN NULL;
END $$
"""
"""Redirects an addition of the previous release to the account; the mirror then writes the day."""

REDIRECT_QUOTA_DAYS = """
CREATE TRIGGER quota_days_redirect BEFORE INSERT ON quota_days FOR EACH ROW
WHEN (pg_trigger_depth() = 0) EXECUTE FUNCTION caseworker_redirect_quota_day()
"""

COPY = """
INSERT INTO accounts (tenant_id, account, period, used_cost_usd, reserved_cost_usd)
SELECT tenant_id, 'tenant', day, cost_usd, reserved_usd FROM quota_days
"""

REDEFINE = """
DO $do$ BEGIN EXECUTE (
    SELECT {definition} FROM pg_get_functiondef('caseworker_claim({types})'::regprocedure)
        AS function(text)
); END $do$
"""
"""Redefines a function that claims runs, with a changed text."""

OF_BEFORE = ("text, integer, text, text", "text, integer, text, text, text[]")
"""Parameters of the functions by which earlier releases claim runs."""

READY = "r.queued_at <= now_at"
SKIPS = f"{READY} AND r.reserved_cost_usd IS DISTINCT FROM 0"
RESERVES = f"{READY} AND (reserves OR r.reserved_cost_usd IS DISTINCT FROM 0)"
EXCLUDED = "excluded text[]"


def _replaced(*changes: tuple[str, str]) -> str:
    """Return SQL for the text of a function with these changes."""
    definition = "text"
    for before, after in changes:
        definition = f"replace({definition}, '{before}', '{after}')"
    return definition


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for statement in (*TABLES, LIMITS, SETTLE, RESERVE, OF_RUN, MIRROR, REDIRECT):
        op.execute(statement)
    op.execute(REDIRECT_QUOTA_DAYS)
    op.execute(COPY)
    op.execute(MIRROR_ACCOUNTS)
    op.execute(SETTLE_RUNS)
    claims = _replaced((READY, RESERVES), (EXCLUDED, f"{EXCLUDED}, reserves boolean"))
    op.execute(REDEFINE.format(types=OF_BEFORE[1], definition=claims))
    for types in OF_BEFORE:
        op.execute(REDEFINE.format(types=types, definition=_replaced((READY, SKIPS))))
    op.execute("SELECT caseworker_keep_tenants_apart()")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute("DROP FUNCTION caseworker_claim(text, integer, text, text, text[], boolean)")
    for types in OF_BEFORE:
        op.execute(REDEFINE.format(types=types, definition=_replaced((SKIPS, READY))))
    op.execute("DROP TRIGGER runs_settle ON runs")
    op.execute(
        "SELECT caseworker_settle(json_agg(json_build_object("
        "'tenant_id', tenant_id, 'run_id', run_id))) FROM account_holds"
    )
    op.execute("DROP TRIGGER quota_days_redirect ON quota_days")
    op.execute("DROP TABLE accounts, account_holds")
    for function in (
        "account_limits(text, text, date, json)",
        "settle(json)",
        "reserve(json, json, json)",
        "settle_run()",
        "mirror_account()",
        "redirect_quota_day()",
    ):
        op.execute(f"DROP FUNCTION caseworker_{function}")
