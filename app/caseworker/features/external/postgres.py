"""Stores the attempts of external runs with the hashes of their keys, and the objects they know.

The objects are stored at a provider: responses, containers and files. Tenants may share an account
there, so a request may refer only to objects that a reply to a run of its tenant has named.
"""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from hmac import compare_digest
from typing import NamedTuple

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
    Text,
)
from sqlalchemy.ext.asyncio import AsyncConnection

from caseworker.core.budget.accounts import AccountLimit
from caseworker.core.budget.budget import Dimension
from caseworker.core.budget.stops import StopCause
from caseworker.features.access.agent_keys import AgentTerms
from caseworker.features.external.key_sessions import (
    UNNAMED,
    KeyUsage,
    SessionRefusedError,
    SessionState,
    StandingKey,
)
from caseworker.platform.http.forwarding import Address
from caseworker.platform.postgres.engines import Pool, read_row, transaction
from caseworker.platform.postgres.locks import LOCK_ATTEMPTS, LOCK_KEY_SESSIONS
from caseworker.runs.postgres.rows import Row
from caseworker.runs.postgres.tables import INSTANT, columns, metadata, run_key
from caseworker.runs.quotas import UNLIMITED, Quota
from caseworker.runs.run import RunKey, RunStatus

external_attempts = Table(
    "external_attempts",
    metadata,
    *run_key(),
    Column("attempt", Integer, primary_key=True),
    Column("sha256", LargeBinary, nullable=False),
    Column("created_at", INSTANT, nullable=False),
    Column("used_at", INSTANT),
)

external_objects = Table(
    "external_objects",
    metadata,
    *run_key(),
    Column("object_id", Text, primary_key=True),
    Column("tokens", BigInteger),
)

key_sessions = Table(
    "key_sessions",
    metadata,
    *columns(Text, "tenant_id account session run_id", nullable=False),
    *columns(INSTANT, "first_at opened_at", nullable=False),
    Column("is_open", Boolean, nullable=False),
    PrimaryKeyConstraint("tenant_id", "account", "session"),
)
"""Sessions of standing keys, each with its newest run; the hash of the unnamed session is empty."""

_RENEW = """
UPDATE external_attempts SET sha256 = %(sha256)s
WHERE tenant_id = %(tenant)s AND run_id = %(run_id)s AND used_at IS NULL AND %(renew)s
    AND attempt = (
        SELECT max(attempt) FROM external_attempts
        WHERE tenant_id = %(tenant)s AND run_id = %(run_id)s
    )
RETURNING attempt
"""

_OPEN = """
INSERT INTO external_attempts (tenant_id, run_id, attempt, sha256)
SELECT %(tenant)s, %(run_id)s, coalesce(max(attempt), 0) + 1, %(sha256)s FROM external_attempts
WHERE tenant_id = %(tenant)s AND run_id = %(run_id)s
RETURNING attempt
"""

_USE = (
    "UPDATE external_attempts SET used_at = clock_timestamp() WHERE sha256 = %s AND used_at IS NULL"
)

_FIND = """
SELECT a.tenant_id, a.run_id, a.attempt, r.status, r.stop,
    (SELECT max(attempt) FROM external_attempts n
     WHERE n.tenant_id = a.tenant_id AND n.run_id = a.run_id) AS newest
FROM external_attempts a JOIN runs r USING (tenant_id, run_id) WHERE a.sha256 = %s
"""

_REVOKE = """
UPDATE external_attempts a
SET sha256 = sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()))
FROM runs r
WHERE a.tenant_id = r.tenant_id AND a.run_id = r.run_id AND r.finished_at IS NULL
    AND a.created_at < %(before)s AND (%(tenant)s::text IS NULL OR a.tenant_id = %(tenant)s)
RETURNING r.tenant_id, r.run_id
"""
"""Replace the hashes of keys by random ones, so that no key is valid."""

_OWNER = """
SELECT r.status, r.request #>> '{graph,steps,0,data,external,parent}' AS parent,
    (SELECT address FROM workers w WHERE w.worker_id = r.worker_id) AS address
FROM runs r WHERE r.tenant_id = %s AND r.run_id = %s
"""

_WORKER = """
SELECT address FROM workers WHERE address <> %s::jsonb AND drain_requested_at IS NULL
    AND beat_at > statement_timestamp() - make_interval(secs => %s::float8)
ORDER BY beat_at DESC LIMIT 1
"""

_NOTE_OBJECTS = """
INSERT INTO external_objects (tenant_id, run_id, object_id, tokens)
SELECT %s, %s, unnest(%s::text[]), %s
ON CONFLICT (tenant_id, run_id, object_id) DO UPDATE SET tokens = excluded.tokens
WHERE external_objects.tokens < excluded.tokens
"""

_KNOWN_OBJECTS = """
SELECT object_id, CASE WHEN bool_and(tokens IS NOT NULL) THEN max(tokens) END AS tokens
FROM external_objects
WHERE tenant_id = %s AND object_id = ANY(%s) GROUP BY object_id
"""


_STANDING_KEY = """
SELECT k.key_id, k.tenant_id, k.name, k.sha256, k.account, k.agent
FROM api_keys k
LEFT JOIN api_keys maker ON maker.tenant_id = k.tenant_id AND maker.key_id = k.made_by
WHERE k.key_id = %(key_id)s AND k.agent IS NOT NULL AND k.revoked_at IS NULL
    AND coalesce(k.expires_at, 'infinity') > statement_timestamp()
    AND (k.made_by IS NULL OR maker.key_id IS NOT NULL AND maker.revoked_at IS NULL
        AND coalesce(maker.expires_at, 'infinity') > statement_timestamp())
"""
"""A standing key that works. It ends with the key that has made it."""

_FIND_SESSION = f"""
SELECT k.*, s.run_id, r.status, r.stop, r.finished_at
FROM ({_STANDING_KEY}) k
LEFT JOIN key_sessions s
    ON s.tenant_id = k.tenant_id AND s.account = k.account AND s.session = %(session)s
LEFT JOIN runs r ON r.tenant_id = s.tenant_id AND r.run_id = s.run_id AND r.request IS NOT NULL
"""  # noqa: S608

_FIND_BY_ID = f"{_FIND_SESSION} WHERE k.tenant_id = %(tenant)s"

_USAGE = """
SELECT clock_timestamp() AS at, coalesce(sum(used_cost_usd), 0) AS cost_usd,
    coalesce(sum(used_tokens), 0) AS tokens, coalesce(sum(used_llm_calls), 0) AS llm_calls,
    coalesce(sum(used_api_calls), 0) AS api_calls
FROM accounts WHERE tenant_id = %(tenant)s AND account = %(account)s
"""

_HALTED = """
SELECT r.run_id, r.stop FROM (
    SELECT run_id FROM key_sessions
    WHERE tenant_id = %(tenant)s AND account = %(key)s AND first_at >= %(since)s
    UNION
    SELECT run_id FROM key_sessions
    WHERE tenant_id = %(tenant)s AND account = %(key)s AND session = ''
) s JOIN runs r ON r.tenant_id = %(tenant)s AND r.run_id = s.run_id
WHERE r.status = 'halted' AND r.finished_at >= %(since)s
    AND r.stop ->> 'scope' IS DISTINCT FROM 'run'
ORDER BY r.finished_at DESC LIMIT 1
"""
"""Return the session that a limit has halted last, of the unnamed one and those begun since."""

_OWN_RUN = f"""
SELECT k.*, r.run_id FROM ({_STANDING_KEY}) k
LEFT JOIN runs r ON r.tenant_id = k.tenant_id AND r.run_id = %(run_id)s
    AND r.request #>> '{{graph,steps,0,data,external,client,account}}' = k.account
"""  # noqa: S608

_LOCK_KEY = "SELECT FROM api_keys WHERE key_id = %s FOR SHARE"
"""Let a revocation wait, so that it finds the run."""

_IS_OVER = """CASE
    WHEN EXISTS (SELECT FROM runs r WHERE r.tenant_id = s.tenant_id AND r.run_id = s.run_id
        AND r.request IS NOT NULL)
    THEN EXISTS (SELECT FROM runs r WHERE r.tenant_id = s.tenant_id AND r.run_id = s.run_id
        AND r.finished_at IS NOT NULL)
    ELSE opened_at < clock_timestamp() - interval '1 minute' END"""

_CLOSE_SESSIONS = f"""
UPDATE key_sessions s SET is_open = false
WHERE tenant_id = %(tenant)s AND account = %(account)s AND is_open AND {_IS_OVER}
"""  # noqa: S608
"""Note which runs have ended, and which were not stored within a minute."""

_COUNT_SESSIONS = f"""
SELECT (SELECT count(*) FROM key_sessions s WHERE tenant_id = %(tenant)s
        AND account = %(account)s AND is_open AND NOT {_IS_OVER}) AS open,
    count(*) AS new, min(first_at) + interval '1 hour' AS fewer_at
FROM key_sessions
WHERE tenant_id = %(tenant)s AND account = %(account)s
    AND first_at > clock_timestamp() - interval '1 hour'
"""  # noqa: S608

_LIMITS = f"""
SELECT limited.period, limited.until, limited.dimension, limited.most, name.account, total.used,
    total.reserved
FROM unnest(%(accounts)s::text[]) WITH ORDINALITY AS name(account, place),
    caseworker_account_limits(%(tenant)s, name.account,
        (clock_timestamp() AT TIME ZONE 'UTC')::date, %(usual)s::json) AS limited,
    LATERAL (
        SELECT {
    ", ".join(
        f"coalesce(sum(CASE dimension WHEN 'cost_usd' THEN {kind}_cost_usd "
        f"WHEN 'tokens' THEN {kind}_tokens WHEN 'llm_calls' THEN {kind}_llm_calls "
        f"ELSE {kind}_api_calls END), 0) AS {kind}"
        for kind in ("used", "reserved")
    )
}
        FROM accounts a WHERE a.tenant_id = %(tenant)s AND a.account = name.account
            AND a.period >= limited.since
    ) AS total
"""  # noqa: S608
"""Return the limits of accounts with their used and reserved amounts."""

_ALL_LIMITS = f"{_LIMITS} ORDER BY name.place, limited.until"

_SPENT_LIMITS = f"""{_LIMITS}
WHERE total.used >= limited.most ORDER BY limited.until DESC NULLS FIRST LIMIT 1
"""
"""Return the limit of the accounts that is spent and is renewed last."""

_OPEN_SESSION = """
INSERT INTO key_sessions AS s (tenant_id, account, session, run_id)
VALUES (%(tenant)s, %(account)s, %(session)s, %(run_id)s)
ON CONFLICT (tenant_id, account, session) DO UPDATE SET opened_at = clock_timestamp(),
    is_open = true,
    run_id = CASE WHEN s.run_id = %(ended)s THEN excluded.run_id ELSE s.run_id END
RETURNING run_id
"""
"""Reserve the ID of a session's next run, unless an ID is reserved whose run has not ended.

``ended`` is the newest run if it has ended, as read before. The statement must not read it again:
another process may store the reserved run at any moment, and that run counts then.
"""


def key_hash(key: str) -> bytes:
    """Return the hash under which a key is stored."""
    return hashlib.sha256(key.encode()).digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptState:
    """The attempt that a key belongs to, and the state of its run."""

    key: RunKey
    attempt: int
    newest: int
    """Number of the newest attempt; the keys of earlier ones are refused."""
    status: RunStatus
    stop: StopCause | None
    """Why the run ended early; None if it did not."""


class OwnerState(NamedTuple):
    """The process that owns a run."""

    status: RunStatus | None
    """Status of the run; None if it was erased."""
    address: Address | None
    """Address of the process; None if no process owns the run."""
    parent: str | None
    """ID of the parent of the run."""


class PostgresAttempts:
    """Stores attempts in Postgres; every method is one transaction."""

    def __init__(self, pool: Pool, *, stale_seconds: float) -> None:
        """A process without a heartbeat for ``stale_seconds`` does not count as alive."""
        self._pool = pool
        self._stale_seconds = stale_seconds

    async def open(self, key: RunKey, sha256: bytes, *, renew: bool) -> int:
        """Open the next attempt of a run with a new key; return its number.

        If ``renew`` and no call was made with the newest key, that attempt gets the new key.
        """
        parameters = {"tenant": key.tenant, "run_id": key.run_id, "sha256": sha256, "renew": renew}
        async with transaction(self._pool, key.tenant) as connection:
            await connection.exec_driver_sql(LOCK_ATTEMPTS, (key.tenant, key.run_id))
            renewed = (await connection.exec_driver_sql(_RENEW, parameters)).scalar_one_or_none()
            if renewed is not None:
                return int(renewed)
            return int((await connection.exec_driver_sql(_OPEN, parameters)).scalar_one())

    async def use(self, sha256: bytes) -> bool:
        """Note that a call is made with a key; return whether it is the first one."""
        async with transaction(self._pool) as connection:
            return bool((await connection.exec_driver_sql(_USE, (sha256,))).rowcount)

    async def revoke_all(
        self, *, before: datetime, tenant: str | None = None
    ) -> Collection[RunKey]:
        """Revoke the keys that open runs got before a time; return these runs.

        Their clients get new keys with `POST /runs` and the same run ID or idempotency key.
        ``tenant`` selects the runs of one tenant.
        """
        filters = {"before": before, "tenant": tenant}
        async with transaction(self._pool) as connection:
            rows = await connection.exec_driver_sql(_REVOKE, filters)
            return {RunKey(row.tenant_id, row.run_id) for row in rows}

    async def note_objects(self, key: RunKey, objects: Sequence[str], tokens: int) -> None:
        """Store that a reply to a run, of this many tokens in and out, has named these objects."""
        async with transaction(self._pool, key.tenant) as connection:
            params = (key.tenant, key.run_id, list(objects), tokens)
            await connection.exec_driver_sql(_NOTE_OBJECTS, params)

    async def known_objects(self, tenant: str, objects: Sequence[str]) -> Mapping[str, int | None]:
        """Return those of the objects that a reply to a run of the tenant has named.

        The values are the tokens of the reply, input and output; None if they are not stored.
        """
        async with transaction(self._pool, tenant) as connection:
            rows = await connection.exec_driver_sql(_KNOWN_OBJECTS, (tenant, list(objects)))
            return {row.object_id: row.tokens for row in rows}

    async def find(self, sha256: bytes) -> AttemptState | None:
        """Return the attempt of a key, or None."""
        row = await read_row(self._pool, _FIND, (sha256,))
        if row is None:
            return None
        return AttemptState(
            key=RunKey(row["tenant_id"], row["run_id"]),
            attempt=row["attempt"],
            newest=row["newest"],
            status=RunStatus(row["status"]),
            stop=row["stop"] and StopCause.from_dict(row["stop"]),
        )

    async def owner_of(self, key: RunKey) -> OwnerState:
        """Return who owns a run."""
        row = await read_row(self._pool, _OWNER, (key.tenant, key.run_id))
        if row is None:
            return OwnerState(None, None, None)
        address = None if row["address"] is None else Address(**row["address"])
        return OwnerState(RunStatus(row["status"]), address, row["parent"])

    async def any_owner(self, other_than: Address | None = None) -> Address | None:
        """Return the address of a living process that accepts runs, or None."""
        but = {} if other_than is None else other_than.to_json()
        parameters = (json.dumps(but), self._stale_seconds)
        async with transaction(self._pool) as connection:
            address = (await connection.exec_driver_sql(_WORKER, parameters)).scalar_one_or_none()
        return address and Address(**address)


class PostgresStandingKeys:
    """Finds standing keys and the runs of their sessions, and opens the latter."""

    def __init__(self, pool: Pool, *, usual: Quota = UNLIMITED) -> None:
        """``usual`` is the quota of tenants that have none of their own."""
        self._pool = pool
        self._usual = json.dumps(usual.costs)

    async def find(
        self, key_id: str, sha256: bytes, session: str
    ) -> tuple[StandingKey, SessionState] | None:
        """Return a key and the newest run of one of its sessions; None if it does not work."""
        row = await read_row(self._pool, _FIND_SESSION, {"key_id": key_id, "session": session})
        if row is None or not compare_digest(bytes(row["sha256"]), sha256):
            return None
        return _standing_key(row), _session_state(row)

    async def reader(
        self, key_id: str, sha256: bytes, run_id: str | None
    ) -> tuple[StandingKey, RunKey | None] | None:
        """Return a key, and the run with an ID if it belongs to a session of the key."""
        row = await read_row(self._pool, _OWN_RUN, {"key_id": key_id, "run_id": run_id})
        if row is None or not compare_digest(bytes(row["sha256"]), sha256):
            return None
        key = _standing_key(row)
        return key, None if row["run_id"] is None else RunKey(key.tenant, row["run_id"])

    async def models_of(self, tenant: str, usual: Sequence[str] | None) -> Sequence[str] | None:
        """Return the models in the quota of a tenant, else ``usual``; None is all."""
        row = await read_row(
            self._pool, "SELECT models FROM quotas WHERE tenant_id = %s", (tenant,)
        )
        models: Sequence[str] | None = usual if row is None else row["models"]
        return models

    async def with_id(
        self, tenant: str, key_id: str | None
    ) -> tuple[StandingKey, SessionState] | None:
        """Return a key that was authenticated, and the newest run of its unnamed session.

        None means that it is not a standing key, or does not work any more.
        """
        names = {"tenant": tenant, "key_id": key_id, "session": UNNAMED}
        row = await read_row(self._pool, _FIND_BY_ID, names)
        return None if row is None else (_standing_key(row), _session_state(row))

    async def usage(self, key: StandingKey, since: datetime | None) -> KeyUsage:
        """Return the usage of a key, and the session that was halted last since a time."""
        account, _ = key.accounts(UNNAMED)
        async with transaction(self._pool) as connection:
            names = {"tenant": key.tenant, "account": account}
            used = (await connection.exec_driver_sql(_USAGE, names)).mappings().one()
            period = {"tenant": key.tenant, "key": key.account, "since": since or used["at"]}
            halted = (await connection.exec_driver_sql(_HALTED, period)).one_or_none()
        if halted is None:
            return KeyUsage(**used)
        return KeyUsage(**used, run_id=halted.run_id, stop=StopCause.from_dict(halted.stop))

    async def limits(self, tenant: str, accounts: Sequence[str]) -> Sequence[AccountLimit]:
        """Return the limits of the accounts with these names, in their order."""
        if not accounts:
            return ()
        names = {"tenant": tenant, "accounts": list(accounts), "usual": self._usual}
        async with transaction(self._pool) as connection:
            rows = (await connection.exec_driver_sql(_ALL_LIMITS, names)).mappings()
            return [_limit_of(row) for row in rows]

    async def open(self, key: StandingKey, session: str, run_id: str) -> SessionState | None:
        """Reserve ``run_id`` for the next run of a session, unless it has an open run.

        Return the newest run, whose ID may be another one; None if the key does not work any more.

        Raises:
            SessionRefusedError: a budget is spent, or the key has too many sessions.
        """
        names = {"tenant": key.tenant, "account": key.account, "session": session}
        finding = {"key_id": key.key_id, "session": session}
        async with transaction(self._pool) as connection:
            await connection.exec_driver_sql(LOCK_KEY_SESSIONS, (key.tenant, key.account))
            await connection.exec_driver_sql(_LOCK_KEY, (key.key_id,))
            rows = (await connection.exec_driver_sql(_FIND_SESSION, finding)).mappings()
            if (row := rows.one_or_none()) is None:
                return None
            state = _session_state(row)
            if state.is_open or state.refusal(session) is not None:
                return state
            await connection.exec_driver_sql(_CLOSE_SESSIONS, names)
            await self._require_capacity(connection, key, session, is_new=state.run_id is None)
            opened = {**names, "run_id": run_id, "ended": state.status and state.run_id}
            reserved = (await connection.exec_driver_sql(_OPEN_SESSION, opened)).scalar_one()
            return SessionState(run_id=reserved)

    async def require_capacity(self, key: StandingKey, session: str, *, is_new: bool) -> None:
        """Check that a session may open a run now; this writes nothing.

        Raises:
            SessionRefusedError: a budget is spent, or the key has too many sessions.
        """
        async with transaction(self._pool) as connection:
            await self._require_capacity(connection, key, session, is_new=is_new)

    async def _require_capacity(
        self, connection: AsyncConnection, key: StandingKey, session: str, *, is_new: bool
    ) -> None:
        names = {"tenant": key.tenant, "account": key.account}
        accounts = {**names, "accounts": list(key.accounts(session)), "usual": "{}"}
        rows = (await connection.exec_driver_sql(_SPENT_LIMITS, accounts)).mappings()
        if (spent := rows.one_or_none()) is not None:
            limit = _limit_of(spent)
            stop = limit.exceeded_by({limit.dimension: 1})
            raise SessionRefusedError(f"{stop.reason}.", stop.cause.kind, limit.resets_at)
        counts = (await connection.exec_driver_sql(_COUNT_SESSIONS, names)).mappings().one()
        terms = key.terms
        if is_new and counts["new"] >= terms.max_sessions_per_hour:
            message = f"The key may open {terms.max_sessions_per_hour} new sessions in an hour."
            raise SessionRefusedError(message, "too_many_sessions", counts["fewer_at"])
        if counts["open"] >= terms.max_open_sessions:
            message = (
                f"The key may have {terms.max_open_sessions} open sessions. A session ends after "
                f"{terms.idle_seconds:g} seconds without a call."
            )
            raise SessionRefusedError(message, "too_many_sessions")


def _standing_key(row: Row) -> StandingKey:
    return StandingKey(
        key_id=row["key_id"],
        tenant=row["tenant_id"],
        name=row["name"],
        account=row["account"],
        terms=AgentTerms(**row["agent"]),
    )


def _session_state(row: Row) -> SessionState:
    return SessionState(
        run_id=row["run_id"],
        status=row["status"] and RunStatus(row["status"]),
        stop=row["stop"] and StopCause.from_dict(row["stop"]),
        finished_at=row["finished_at"],
    )


def _limit_of(row: Row) -> AccountLimit:
    return AccountLimit(
        account=row["account"],
        period=row["period"],
        until=row["until"],
        dimension=Dimension(row["dimension"]),
        used=row["used"],
        reserved=row["reserved"],
        limit=row["most"],
    )
