"""Store standing keys, the sessions that they open, and the calls that accounts count.

A standing key is a row of ``api_keys`` with its limits in ``agent``. The previous release lists
such a key with the scope ``read``, and does not accept it, because its form differs. The runs of
its sessions have ``runs.reserved_cost_usd = 0``, so the previous release does not claim them.

All new columns are null or have a constant default, so no table is rewritten. Writes to
``api_keys`` and to the tables of accounts are blocked for an instant.

Revision: 20261130_2200
Revises: 20261130_1800
"""

from alembic import op

revision = "20261130_2200"
down_revision = "20261130_1800"
branch_labels = None
depends_on = None

KEYS = """
ALTER TABLE api_keys ADD COLUMN agent jsonb, ADD COLUMN account text, ADD COLUMN made_by text
"""
"""Limits of a standing key; ID under which its calls are counted, which a rotation keeps; ID of
the key that has made it, with which it ends."""

BY_ACCOUNT, BY_MAKER = "api_keys_by_account", "api_keys_by_maker"
INDEXES = {
    BY_ACCOUNT: "api_keys (account) WHERE account IS NOT NULL",
    BY_MAKER: "api_keys (made_by) WHERE made_by IS NOT NULL",
}

SESSIONS = (
    """CREATE TABLE key_sessions (
        tenant_id text NOT NULL,
        account text NOT NULL,
        session text NOT NULL,
        run_id text NOT NULL,
        first_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        opened_at timestamptz NOT NULL DEFAULT clock_timestamp(),
        is_open boolean NOT NULL DEFAULT true,
        PRIMARY KEY (tenant_id, account, session)
    )""",  # is_open may still be true after the end of the run, never false before it
    "CREATE INDEX key_sessions_by_run ON key_sessions (tenant_id, run_id)",
    "CREATE INDEX key_sessions_by_age ON key_sessions (tenant_id, account, first_at)",
    "CREATE INDEX key_sessions_open ON key_sessions (tenant_id, account) WHERE is_open",
)

COUNTED = ("llm_calls", "api_calls")
ACCOUNTS = "ALTER TABLE accounts " + ", ".join(
    f"ADD COLUMN {kind}_{name} bigint NOT NULL DEFAULT 0"
    for name in COUNTED
    for kind in ("used", "reserved")
)
HOLDS = "ALTER TABLE account_holds " + ", ".join(
    f"ADD COLUMN {name} bigint NOT NULL DEFAULT 0" for name in COUNTED
)

_OF_TENANTS = "WHERE account = 'tenant' AND of_account.most IS NOT NULL"
_OF_KEYS = f"""{_OF_TENANTS}
    UNION ALL
    SELECT span.period, span.since, span.until, counted.dimension,
        (span.budget ->> counted.name)::numeric
    FROM (
        SELECT k.agent FROM api_keys k
        WHERE k.account = split_part($2, ':', 2) AND k.tenant_id = $1 LIMIT 1
    ) standing, LATERAL (
        VALUES ('key', 'day', $3, $3 + 1, standing.agent -> 'budget_per_day'),
            ('key', 'month', date_trunc('month', $3)::date,
                (date_trunc('month', $3) + interval '1 month')::date,
                standing.agent -> 'budget_per_month'),
            (CASE split_part($2, ':', 3) WHEN '' THEN 'session' END, 'day', $3, $3 + 1,
                standing.agent -> 'budget'),
            (CASE split_part($2, ':', 3) WHEN '' THEN NULL ELSE 'session' END, 'total',
                '-infinity'::date, NULL::date, standing.agent -> 'budget')
    ) AS span(kind, period, since, until, budget), (
        VALUES ('cost_usd', 'max_cost_usd'), ('tokens', 'max_tokens'),
            ('llm_calls', 'max_llm_calls'), ('api_calls', 'max_api_calls')
    ) AS counted(dimension, name)
    WHERE span.kind = split_part($2, ':', 1) AND span.budget ->> counted.name IS NOT NULL
    UNION ALL
    SELECT 'day', $3, $3 + 1, 'api_calls', 0
    WHERE split_part($2, ':', 1) IN ('key', 'session') AND NOT EXISTS (
        SELECT FROM api_keys k WHERE k.account = split_part($2, ':', 2) AND k.tenant_id = $1)"""
"""An account of a key that does not exist allows nothing."""

_MORE = ", llm_calls bigint, api_calls bigint"

LIMITS, SETTLE, RESERVE = (
    "caseworker_account_limits(text, text, date, json)",
    "caseworker_settle(json)",
    "caseworker_reserve(json, json, json)",
)
CHANGES = (
    (LIMITS, _OF_TENANTS, _OF_KEYS),
    (
        SETTLE,
        "cost_usd numeric,\n                tokens bigint",
        f"cost_usd numeric,\n                tokens bigint{_MORE}",
    ),
    (
        SETTLE,
        "coalesce(s.tokens, h.tokens) AS used_tokens",
        "coalesce(s.tokens, h.tokens) AS used_tokens,\n"
        "                coalesce(s.llm_calls, h.llm_calls) AS used_llm_calls,\n"
        "                coalesce(s.api_calls, h.api_calls) AS used_api_calls",
    ),
    (
        SETTLE,
        "sum(used_tokens) AS used_tokens",
        "sum(used_tokens) AS used_tokens,\n"
        "                sum(llm_calls) AS llm_calls, sum(used_llm_calls) AS used_llm_calls,\n"
        "                sum(api_calls) AS api_calls, sum(used_api_calls) AS used_api_calls",
    ),
    (
        SETTLE,
        "reserved_tokens = a.reserved_tokens - t.tokens",
        "reserved_tokens = a.reserved_tokens - t.tokens,\n"
        "            used_llm_calls = a.used_llm_calls + t.used_llm_calls,\n"
        "            reserved_llm_calls = a.reserved_llm_calls - t.llm_calls,\n"
        "            used_api_calls = a.used_api_calls + t.used_api_calls,\n"
        "            reserved_api_calls = a.reserved_api_calls - t.api_calls",
    ),
    (
        RESERVE,
        "accounts text[], cost_usd numeric, tokens bigint",
        f"accounts text[], cost_usd numeric, tokens bigint{_MORE}",
    ),
    (
        RESERVE,
        "sum(used_tokens),\n                    sum(reserved_tokens)",
        "sum(used_tokens),\n                    sum(reserved_tokens), sum(used_llm_calls), "
        "sum(reserved_llm_calls),\n                    "
        "sum(used_api_calls), sum(reserved_api_calls)",
    ),
    (
        RESERVE,
        "AS total(used_cost_usd, reserved_cost_usd, used_tokens, reserved_tokens)",
        "AS total(used_cost_usd, reserved_cost_usd, used_tokens, reserved_tokens,\n"
        "                used_llm_calls, reserved_llm_calls, used_api_calls, reserved_api_calls)",
    ),
    (
        RESERVE,
        "call.tokens WHERE dimension = 'tokens'",
        "call.tokens WHERE dimension = 'tokens'"
        + "".join(
            f"\n                UNION ALL\n                SELECT used_{name}, reserved_{name},"
            f" coalesce(call.{name}, 0)\n                WHERE dimension = '{name}'"
            for name in COUNTED
        ),
    ),
    (
        RESERVE,
        "account, period, cost_usd, tokens\n",
        "account, period, cost_usd, tokens,\n                llm_calls, api_calls\n",
    ),
    (
        RESERVE,
        "today, call.cost_usd, call.tokens;",
        "today, call.cost_usd, call.tokens, coalesce(call.llm_calls, 0),\n"
        "                coalesce(call.api_calls, 0);",
    ),
    (
        RESERVE,
        "reserved_tokens = a.reserved_tokens + call.tokens",
        "reserved_tokens = a.reserved_tokens + call.tokens,\n"
        "                reserved_llm_calls = a.reserved_llm_calls + coalesce(call.llm_calls, 0),\n"
        "                reserved_api_calls = a.reserved_api_calls + coalesce(call.api_calls, 0)",
    ),
)
"""What changes in functions: the function, the text before, and the text after."""

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
        op.execute(KEYS.replace("ADD COLUMN", "ADD COLUMN IF NOT EXISTS"))
        # A concurrent build blocks no one while it waits for older transactions, however long.
        op.execute("SET lock_timeout = 0")
        for name, definition in INDEXES.items():
            op.execute(f"DROP INDEX CONCURRENTLY IF EXISTS {name}")
            op.execute(f"CREATE INDEX CONCURRENTLY IF NOT EXISTS {name} ON {definition}")
        op.execute("RESET lock_timeout")
    op.execute("SET LOCAL lock_timeout = '5s'")
    for statement in (*SESSIONS, ACCOUNTS, HOLDS):
        op.execute(statement)
    for function, before, after in CHANGES:
        op.execute(CHANGE.format(function=function, before=before, after=after))
    op.execute("SELECT caseworker_keep_tenants_apart()")


def downgrade() -> None:
    op.execute("SET LOCAL lock_timeout = '5s'")
    for function, before, after in reversed(CHANGES):
        op.execute(CHANGE.format(function=function, before=after, after=before))
    op.execute("DROP TABLE key_sessions")
    columns = ", ".join(
        f"DROP COLUMN {kind}_{name}" for name in COUNTED for kind in ("used", "reserved")
    )
    op.execute(f"ALTER TABLE accounts {columns}")
    op.execute(f"ALTER TABLE account_holds {', '.join(f'DROP COLUMN {name}' for name in COUNTED)}")
    op.execute("DELETE FROM api_keys WHERE agent IS NOT NULL")
    op.execute("ALTER TABLE api_keys DROP COLUMN agent, DROP COLUMN account, DROP COLUMN made_by")
