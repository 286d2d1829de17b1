"""Stores the attempts of external runs with the hashes of their keys, and the objects they know.

The objects are stored at a provider: responses, containers and files. Tenants may share an account
there, so a request may refer only to objects that a reply to a run of its tenant has named.
"""

import hashlib
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from sqlalchemy import BigInteger, Column, Integer, LargeBinary, Table, Text

from caseworker.core.budget.stops import StopCause
from caseworker.platform.http.forwarding import Address
from caseworker.platform.postgres.engines import Pool, read_row, transaction
from caseworker.platform.postgres.locks import LOCK_ATTEMPTS
from caseworker.runs.postgres.tables import INSTANT, metadata, run_key
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
