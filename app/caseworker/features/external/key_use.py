"""Reads the use of standing keys by session, and counts their refused calls.

A refused call is stored nowhere else, because a refusal must not cost a write. Each process adds
up the refusals of some seconds and stores the sums in the accounts of the key and of its sessions,
in one statement. A process that is killed loses those of the last seconds.
"""

import asyncio
import json
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

import structlog

from caseworker.core.budget.accounts import COUNTED
from caseworker.features.access.keys import ApiKey
from caseworker.platform.errors import StoreUnavailableError
from caseworker.platform.paging import Page
from caseworker.platform.postgres.engines import Pool, read_row, transaction
from caseworker.runs.postgres.rows import Row, decode_cursor, instant_and_id, page_of
from caseworker.runs.run import RunStatus

log = structlog.get_logger(__name__)

STORE_SECONDS: Final = 2.0
"""Seconds for which a process adds up refused calls before it stores them."""
MAX_SESSIONS: Final = 1000
"""Maximum number of sessions whose refused calls a process adds up at once. Refused calls of
further sessions count only for their key."""
SESSIONS: Final = "key sessions"
"""Name of the list of sessions, in its cursors."""

_TODAY: Final = "(statement_timestamp() AT TIME ZONE 'UTC')::date"
_AMOUNTS: Final = [f"{kind}_{name}" for kind in ("used", "reserved") for name in COUNTED]
_SUMS: Final = ", ".join(f"coalesce(sum({each}), 0) AS {each}" for each in (*_AMOUNTS, "refused"))

_USE_OF_KEY = f"""
SELECT month.since, today, day.*, {", ".join(f"month.{each} AS month_{each}" for each in _AMOUNTS)},
    month.refused AS month_refused
FROM (SELECT {_TODAY} AS today) now, LATERAL (
    SELECT {_SUMS} FROM accounts
    WHERE tenant_id = %(tenant)s AND account = %(account)s AND period = today
) day, LATERAL (
    SELECT date_trunc('month', today)::date AS since, {_SUMS} FROM accounts
    WHERE tenant_id = %(tenant)s AND account = %(account)s AND period >= date_trunc('month', today)
) month
"""  # noqa: S608 - constant names

_CLIENT = "r.request #> '{graph,steps,0,data,external,client}'"

_SESSIONS_OF_KEY = f"""
SELECT s.*, r.status, {_CLIENT} ->> 'conversation' AS name,
    {_CLIENT} ->> 'user_agent' AS user_agent,
    to_timestamp(call.started_ms / 1000) AS last_call_at, total.*
FROM (
    SELECT session, run_id, first_at, opened_at FROM key_sessions
    WHERE tenant_id = %(tenant)s AND account = %(account)s AND (%(first_at)s::timestamptz IS NULL
        OR (first_at, session) < (%(first_at)s::timestamptz, %(session)s))
    ORDER BY first_at DESC, session DESC LIMIT %(limit)s
) s LEFT JOIN runs r ON r.tenant_id = %(tenant)s AND r.run_id = s.run_id AND r.request IS NOT NULL
LEFT JOIN LATERAL (
    SELECT coalesce(brief ->> 2, node ->> 'start_ts_ms')::float8 AS started_ms
    FROM calls c WHERE c.tenant_id = %(tenant)s AND c.run_id = s.run_id
    ORDER BY seq DESC LIMIT 1
) call ON true, LATERAL (
    SELECT {_SUMS} FROM accounts a WHERE a.tenant_id = %(tenant)s
        AND a.account = 'session:' || %(account)s
            || CASE s.session WHEN '' THEN '' ELSE ':' || s.session END
        AND a.period >= CASE s.session WHEN '' THEN {_TODAY} ELSE '-infinity' END
) total
ORDER BY s.first_at DESC, s.session DESC
"""  # noqa: S608 - constant names
"""List the sessions of a key, each with its newest run. The amounts of the unnamed session are
those of the UTC day, because its budget is renewed with it."""

_COUNT_REFUSED = f"""
INSERT INTO accounts AS a (tenant_id, account, period, refused)
SELECT tenant_id, name, {_TODAY}, sum(refused)
FROM json_to_recordset(%s::json)
    AS r(tenant_id text, account text, session text, refused bigint),
    LATERAL (
        SELECT 'key:' || r.account AS name
        UNION ALL
        SELECT 'session:' || s.account || CASE s.session WHEN '' THEN '' ELSE ':' || s.session END
        FROM key_sessions s WHERE s.tenant_id = r.tenant_id AND s.account = r.account
            AND s.session = r.session
    ) counted
GROUP BY tenant_id, name ORDER BY tenant_id, name
ON CONFLICT (tenant_id, account, period) DO UPDATE SET refused = a.refused + excluded.refused
"""  # noqa: S608 - constant names
"""Add refused calls to the account of the key, and to that of the session if it has had a run.

A name of a session that never had a run leaves no row. The rows are locked in the order of
``caseworker_reserve``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountUse:
    """What calls have used of an account, and have reserved; by dimension."""

    used: Mapping[str, Decimal]
    reserved: Mapping[str, Decimal]
    refused: int
    """Number of refused calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyUse:
    """What all sessions of a standing key have used in the current UTC day and month."""

    day: AccountUse
    month: AccountUse


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionUse:
    """A session of a standing key, with its newest run."""

    session: str
    """Hash of the name; empty for the unnamed session."""
    name: str | None
    """Name without secrets and personal data; None for the unnamed session."""
    user_agent: str | None
    run_id: str
    status: RunStatus | None
    """Status of the run; None if it is not stored."""
    first_at: datetime
    opened_at: datetime
    last_call_at: datetime | None
    """Start of the last call of the run; None if it has made none."""
    use: AccountUse
    """All use of the session; for the unnamed one, that of the UTC day."""


@dataclass(slots=True)
class PostgresKeyUse:
    """Reads the use of standing keys, and stores their refused calls."""

    pool: Pool
    _refused: Counter[tuple[str, str, str | None]] = field(default_factory=Counter)
    """Refused calls that are not stored yet, by tenant, account and session."""
    _storing: asyncio.Task[None] | None = None
    _closing: asyncio.Event = field(default_factory=asyncio.Event)

    async def of_key(self, key: ApiKey) -> KeyUse | None:
        """Return the use of a standing key; None for other keys."""
        if key.account is None:
            return None
        names = {"tenant": key.tenant, "account": f"key:{key.account}"}
        row = await read_row(self.pool, _USE_OF_KEY, names)
        if row is None:
            return None
        return KeyUse(day=_use_in(row), month=_use_in(row, "month_"))

    async def sessions(self, key: ApiKey, *, limit: int, cursor: str | None) -> Page[SessionUse]:
        """Return a page of the sessions of a key, newest first.

        Raises:
            InvalidRunError: the cursor is invalid.
        """
        place = (None, None) if cursor is None else decode_cursor(SESSIONS, cursor, instant_and_id)
        names: dict[str, Any] = {"tenant": key.tenant, "account": key.account, "limit": limit + 1}
        names |= {"first_at": place[0], "session": place[1]}
        async with transaction(self.pool) as connection:
            rows = (await connection.exec_driver_sql(_SESSIONS_OF_KEY, names)).mappings().all()
        return page_of(
            SESSIONS,
            rows,
            limit,
            lambda row: [row["first_at"].isoformat(), row["session"]],
            _session_use,
        )

    def count_refused(self, tenant: str, account: str, session: str) -> None:
        """Count a refused call of a session; it is stored within some seconds."""
        counted: tuple[str, str, str | None] = (tenant, account, session)
        if counted not in self._refused and len(self._refused) >= MAX_SESSIONS:
            counted = (tenant, account, None)
        self._refused[counted] += 1
        if self._storing is None:
            self._storing = asyncio.create_task(self._store_soon(), name="refused calls")

    async def aclose(self) -> None:
        """Store the refused calls that were counted."""
        self._closing.set()
        if self._storing is not None:
            await self._storing

    async def _store_soon(self) -> None:
        while self._refused:
            with suppress(TimeoutError):
                async with asyncio.timeout(STORE_SECONDS):
                    await self._closing.wait()
            await self._store()
            if self._closing.is_set():
                break
        self._storing = None

    async def _store(self) -> None:
        refused, self._refused = self._refused, Counter()
        rows = [
            {"tenant_id": tenant, "account": account, "session": session, "refused": number}
            for (tenant, account, session), number in refused.items()
        ]
        try:
            async with transaction(self.pool) as connection:
                await connection.exec_driver_sql(_COUNT_REFUSED, (json.dumps(rows),))
        except StoreUnavailableError as error:
            log.warning("refused_calls.not_stored", error=type(error).__name__)
            self._refused.update(refused)


def _use_in(row: Row, prefix: str = "") -> AccountUse:
    return AccountUse(
        used={name: row[f"{prefix}used_{name}"] for name in COUNTED},
        reserved={name: row[f"{prefix}reserved_{name}"] for name in COUNTED},
        refused=row[f"{prefix}refused"],
    )


def _session_use(row: Row) -> SessionUse:
    return SessionUse(
        session=row["session"],
        name=row["name"],
        user_agent=row["user_agent"],
        run_id=row["run_id"],
        status=row["status"] and RunStatus(row["status"]),
        first_at=row["first_at"],
        opened_at=row["opened_at"],
        last_call_at=row["last_call_at"],
        use=_use_in(row),
    )
