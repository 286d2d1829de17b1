"""Count the refused calls of standing keys, and announce when their budgets are nearly spent.

``caseworker_settle`` stores a webhook delivery when a key or a session has spent 70 or 90 % of a
limit. Only accounts whose key has a webhook are checked: ``accounts.watched`` is null until the
first call of a day has settled. ``accounts.notices`` lists the announcements. A unique index on
``webhook_deliveries`` decides if two transactions announce the same around midnight.

New columns are null or have a constant default, so no table is rewritten. Writes to both tables are
blocked for an instant.

Revision: 20261201_0500
Revises: 20261201_0400
"""

from alembic import op

revision = "20261201_0500"
down_revision = "20261201_0400"
branch_labels = None
depends_on = None

ACCOUNTS = """
ALTER TABLE accounts ADD COLUMN refused bigint NOT NULL DEFAULT 0, ADD COLUMN watched boolean,
    ADD COLUMN notices text[]
"""
DELIVERIES = """
ALTER TABLE webhook_deliveries ADD COLUMN IF NOT EXISTS notice text NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS data jsonb
"""
"""The threshold that a message announces, and the message; empty and null for the end of a run."""

INDEXES = {
    "webhook_deliveries_of_run": "webhook_deliveries (tenant_id, run_id, type, notice)",
    "webhook_deliveries_of_notice": "webhook_deliveries (tenant_id, notice) WHERE notice <> ''",
}

ONE_AN_END = "webhook_deliveries_one_an_end"

ANNOUNCE = """
CREATE FUNCTION caseworker_announce(of_tenant text, of_account text, of_day date, of_run text)
RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    standing record;
    announced text[];
BEGIN
    SELECT k.key_id, k.name, k.agent #>> '{webhook,url}' AS url INTO standing
    FROM api_keys k WHERE k.tenant_id = of_tenant AND k.account = split_part(of_account, ':', 2)
    ORDER BY k.created_at DESC LIMIT 1;
    IF standing.url IS NULL THEN
        UPDATE accounts a SET watched = false
        WHERE a.tenant_id = of_tenant AND a.account = of_account AND a.period = of_day;
        RETURN;
    END IF;
    WITH crossed AS (
        SELECT limited.*, total.used, mark.percent,
            concat_ws('/', of_account, limited.period, limited.since, limited.dimension,
                mark.percent) AS notice
        FROM caseworker_account_limits(of_tenant, of_account, of_day, '{}') AS limited, LATERAL (
            SELECT sum(CASE limited.dimension WHEN 'cost_usd' THEN a.used_cost_usd
                WHEN 'tokens' THEN a.used_tokens WHEN 'llm_calls' THEN a.used_llm_calls
                ELSE a.used_api_calls END) AS used
            FROM accounts a WHERE a.tenant_id = of_tenant AND a.account = of_account
                AND a.period >= limited.since AND a.period < coalesce(limited.until, 'infinity')
        ) AS total, (VALUES (70), (90)) AS mark(percent)
        WHERE limited.most > 0 AND total.used * 100 >= limited.most * mark.percent
    ), new AS (
        SELECT crossed.* FROM crossed WHERE NOT EXISTS (
            SELECT FROM accounts a WHERE a.tenant_id = of_tenant AND a.account = of_account
                AND a.period >= crossed.since AND a.notices @> ARRAY[crossed.notice])
    ), deliveries AS (
        INSERT INTO webhook_deliveries (tenant_id, run_id, type, url, notice, data)
        SELECT of_tenant, of_run, 'account.threshold', standing.url, new.notice, jsonb_build_object(
            'key_id', standing.key_id, 'key_name', standing.name,
            'account', CASE split_part(of_account, ':', 1) WHEN 'key' THEN new.period
                ELSE 'session' END,
            'session', CASE split_part(of_account, ':', 1) WHEN 'session' THEN
                r.request #>> '{graph,steps,0,data,external,client,conversation}' END,
            'run_id', of_run, 'limit', 'max_' || new.dimension, 'percent', new.percent,
            'used', new.used, 'maximum', new.most,
            'resets_at', to_char(new.until, 'YYYY-MM-DD"T00:00:00Z"'))
        FROM new JOIN runs r ON r.tenant_id = of_tenant AND r.run_id = of_run
        ON CONFLICT DO NOTHING
        RETURNING tenant_id, delivery_id
    ), queued AS (
        INSERT INTO procrastinate_jobs (queue_name, task_name, queueing_lock, args)
        SELECT 'webhooks', 'deliver_webhook', 'webhook/' || delivery_id,
            jsonb_build_object('tenant', tenant_id, 'delivery_id', delivery_id)
        FROM deliveries
    )
    SELECT array_agg(new.notice) INTO announced FROM new;
    UPDATE accounts a SET watched = true, notices = coalesce(a.notices, '{}') || announced
    WHERE a.tenant_id = of_tenant AND a.account = of_account AND a.period = of_day
        AND (a.watched IS NULL OR announced IS NOT NULL);
END $$
"""
"""Announces the spending of an account, once for each limit, period and percentage.

``of_day`` is the period in which the calls were reserved that a transaction settles, and ``of_run``
the run of one of them. The transaction has locked the row of the account."""

SETTLE = "caseworker_settle(json)"
CHANGES = (
    (
        "SELECT tenant_id, account, period, sum(",
        "SELECT tenant_id, account, period, min(run_id) AS run_id,\n                sum(",
    ),
    (
        "RETURNING a.tenant_id, a.account\n",
        "RETURNING a.tenant_id, a.account, a.period, a.watched, t.run_id\n",
    ),
    (
        "    END LOOP;",
        "        IF changed.account <> 'tenant' AND changed.watched IS NOT FALSE THEN\n"
        "            PERFORM caseworker_announce(\n"
        "                changed.tenant_id, changed.account, changed.period, changed.run_id);\n"
        "        END IF;\n"
        "    END LOOP;",
    ),
)
"""What changes in the function that settles: the text before, and the text after."""

CHANGE = """
DO $do$ DECLARE definition text := pg_get_functiondef('{function}'::regprocedure);
BEGIN
    ASSERT position($b${before}$b$ IN definition) > 0, '{function} has another text';
    EXECUTE replace(definition, $b${before}$b$, $a${after}$a$);
END $do$
"""


def upgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    with op.get_context().autocommit_block():
        op.execute("SET lock_timeout = '5s'")
        op.execute(DELIVERIES)
        # A concurrent build blocks no one while it waits for older transactions, however long.
        op.execute("SET lock_timeout = 0")
        for name, definition in INDEXES.items():
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
            op.execute(f"CREATE UNIQUE INDEX CONCURRENTLY IF NOT EXISTS {name} ON {definition}")
        op.execute("RESET lock_timeout")
    op.execute("SET LOCAL lock_timeout = '5s'")
    op.execute(f"ALTER TABLE webhook_deliveries DROP CONSTRAINT {ONE_AN_END}")
    op.execute(ACCOUNTS)
    op.execute(ANNOUNCE)
    for before, after in CHANGES:
        op.execute(CHANGE.format(function=SETTLE, before=before, after=after))


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for before, after in reversed(CHANGES):
        op.execute(CHANGE.format(function=SETTLE, before=after, after=before))
    op.execute("DROP FUNCTION caseworker_announce(text, text, date, text)")
    op.execute("ALTER TABLE accounts DROP COLUMN refused, DROP COLUMN watched, DROP COLUMN notices")
    op.execute("DELETE FROM webhook_deliveries WHERE notice <> ''")
    for name in INDEXES:
        op.execute(f"DROP INDEX {name}")
    op.execute(
        f"ALTER TABLE webhook_deliveries DROP COLUMN notice, DROP COLUMN data, "
        f"ADD CONSTRAINT {ONE_AN_END} UNIQUE (tenant_id, run_id, type)"
    )
