"""Deletes the accounts of standing keys that have ended, and the sessions whose run was not stored.

A session is deleted with its newest run, but its budget is never renewed. So its account is kept
for as long as a call can be made with the key. An ended key never works again, therefore no lock is
needed against calls. Budgets per day and month do not read the days of earlier months.
"""

from typing import Final

from sqlalchemy.ext.asyncio import AsyncConnection

from caseworker.features.expiry import DUE, Batch

_KEYS: Final = f"""
WITH RECURSIVE counted AS (
    SELECT min(account) AS name FROM accounts WHERE tenant_id = %(tenant)s AND account > 'key'
    UNION ALL
    SELECT (SELECT min(a.account) FROM accounts a
        WHERE a.tenant_id = %(tenant)s AND a.account > counted.name)
    FROM counted WHERE starts_with(counted.name, 'key:')
), opened AS (
    SELECT min(account) AS name FROM key_sessions WHERE tenant_id = %(tenant)s
    UNION ALL
    SELECT (SELECT min(s.account) FROM key_sessions s
        WHERE s.tenant_id = %(tenant)s AND s.account > opened.name)
    FROM opened WHERE opened.name IS NOT NULL
)
SELECT account, NOT EXISTS (
    SELECT FROM api_keys k
    LEFT JOIN api_keys maker ON maker.tenant_id = k.tenant_id AND maker.key_id = k.made_by
    WHERE k.account = used.account AND k.tenant_id = %(tenant)s AND {DUE} <= coalesce(
        least(k.revoked_at, k.expires_at, maker.revoked_at, maker.expires_at,
            CASE WHEN k.made_by IS NOT NULL AND maker.key_id IS NULL
                THEN '-infinity'::timestamptz END),
        'infinity')
) AS is_over
FROM (
    SELECT split_part(name, ':', 2) AS account FROM counted WHERE starts_with(name, 'key:')
    UNION
    SELECT name FROM opened WHERE name IS NOT NULL
) used
"""  # noqa: S608 - nothing of a caller's is in it, here and below
"""List the accounts of standing keys, and whether all keys of each ended before the time.

Reads one index entry per key, however many days and sessions it has."""

_DROP_SESSIONS: Final = f"""
DELETE FROM key_sessions WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM key_sessions s
    WHERE tenant_id = %(tenant)s AND account = ANY(%(ended)s) AND opened_at < {DUE}
        AND NOT EXISTS (SELECT FROM runs r WHERE r.tenant_id = s.tenant_id
            AND r.run_id = s.run_id AND r.request IS NOT NULL)
    LIMIT %(limit)s FOR UPDATE SKIP LOCKED
))
"""  # noqa: S608

_UNUSED: Final = """FROM unnest(%(ended)s::text[]) AS ended(key)
    JOIN accounts a ON a.tenant_id = %(tenant)s"""
_OF_SESSIONS: Final = """a.account >= 'session:' || key AND a.account < 'session:' || key || ':g'
        AND starts_with(a.account, 'session:' || key)"""
"""SQL condition for the accounts of the sessions of a key. The range, which an index can find,
contains them in every collation, and possibly more accounts."""
_WITHOUT_RUNS: Final = """NOT EXISTS (
        SELECT FROM key_sessions s WHERE s.tenant_id = %(tenant)s AND s.account = key)"""

_DROP_ACCOUNTS: Final = f"""
DELETE FROM accounts WHERE ctid = ANY (ARRAY(
    SELECT a.ctid {_UNUSED} AND {_OF_SESSIONS}
    WHERE {_WITHOUT_RUNS} LIMIT %(limit)s
))
"""  # noqa: S608

_DROP_KEYS: Final = f"""
DELETE FROM accounts WHERE ctid = ANY (ARRAY(
    SELECT a.ctid {_UNUSED} AND a.account = 'key:' || key
    WHERE {_WITHOUT_RUNS} AND NOT EXISTS (
        SELECT FROM accounts a WHERE a.tenant_id = %(tenant)s AND {_OF_SESSIONS})
    LIMIT %(limit)s
))
"""  # noqa: S608
"""The account of a key goes last, because it leads to those of its sessions."""

_DROP_DAYS: Final = f"""
DELETE FROM accounts WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM accounts a
    WHERE tenant_id = %(tenant)s AND account = ANY(%(names)s)
        AND period < date_trunc('month', ({DUE}) AT TIME ZONE 'UTC')::date
        AND EXISTS (SELECT FROM accounts n WHERE n.tenant_id = a.tenant_id
            AND n.account = a.account AND n.period > a.period)
    LIMIT %(limit)s FOR UPDATE SKIP LOCKED
))
"""  # noqa: S608
"""Delete days whose month is over, except for the newest one of each account."""


async def drop_sessions(connection: AsyncConnection, batch: Batch) -> bool:
    """Delete a batch of accounts of ended keys, and of days of keys; return whether more may exist.

    A key has ended if it was revoked or expired, or if the key that made it has ended.
    """
    rows = (await connection.exec_driver_sql(_KEYS, dict(batch))).all()
    if not rows:
        return False
    names = [f"{kind}:{row.account}" for row in rows for kind in ("key", "session")]
    one = {**batch, "ended": [row.account for row in rows if row.is_over], "names": names}
    drops = [_DROP_DAYS]
    if one["ended"]:
        drops += [_DROP_SESSIONS, _DROP_ACCOUNTS, _DROP_KEYS]
    more = False
    for statement in drops:
        deleted = await connection.exec_driver_sql(statement, one)
        more |= deleted.rowcount >= batch["limit"]
    return more
