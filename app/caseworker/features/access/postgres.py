"""Creates, lists, rotates and revokes API keys, which are stored in Postgres."""

import secrets
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from operator import attrgetter
from typing import Final

from sqlalchemy import (
    ARRAY,
    Column,
    ColumnElement,
    LargeBinary,
    Table,
    Text,
    delete,
    exists,
    func,
    insert,
    select,
    true,
    update,
)
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection

from caseworker.features.access.agent_keys import AGENT_PREFIX, AgentTerms
from caseworker.features.access.keys import (
    DEFAULT_OVERLAP,
    KEY_PREFIX,
    MAX_KEYS,
    ApiKey,
    IssuedKey,
    KeyConflictError,
    KeyNotFoundError,
    sha256_of,
)
from caseworker.platform.caller import Caller, KeyScope, OtherTenantError, ScopeMissingError
from caseworker.platform.postgres.audit import Act, record
from caseworker.platform.postgres.engines import Pool, transaction
from caseworker.platform.postgres.locks import LOCK_API_KEYS
from caseworker.runs.postgres.rows import Row
from caseworker.runs.postgres.tables import INSTANT, columns, metadata
from caseworker.runs.run import RunKey

api_keys = Table(
    "api_keys",
    metadata,
    Column("key_id", Text, primary_key=True),
    *columns(Text, "tenant_id name created_by", nullable=False),
    Column("scopes", ARRAY(Text), nullable=False),
    Column("sha256", LargeBinary, nullable=False),
    Column("created_at", INSTANT, nullable=False),
    *columns(INSTANT, "expires_at revoked_at"),
    *columns(Text, "rotated_to account made_by"),
    Column("agent", JSONB(none_as_null=True)),
)

_RUNS_OF_KEYS = """
SELECT s.tenant_id, s.run_id FROM key_sessions s LEFT JOIN runs r USING (tenant_id, run_id)
WHERE (s.tenant_id, s.account) IN (
        SELECT tenant_id, account FROM api_keys
        WHERE key_id = ANY(%(key_ids)s) AND account IS NOT NULL OR made_by = ANY(%(key_ids)s)
    ) AND s.is_open AND r.finished_at IS NULL AND NOT EXISTS (
        SELECT FROM api_keys k WHERE k.tenant_id = s.tenant_id AND k.account = s.account
            AND k.revoked_at IS NULL AND coalesce(k.expires_at, 'infinity') > clock_timestamp())
ORDER BY s.tenant_id, s.run_id
"""
"""Open runs of standing keys and of those that keys have made, unless another key continues them.

They include runs that are about to be stored."""

_LATEST: Final = datetime.max.replace(tzinfo=UTC)
_FIELDS = tuple(ApiKey.__dataclass_fields__.keys() - {"tenant", "scopes", "agent"})


class PostgresKeys:
    """The API keys of all tenants.

    Callers manage the keys of their own tenant; the operator manages those of any tenant. Tenants
    are separated by conditions in the queries, not by row-level security.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def any(self) -> bool:
        """Return whether a key was ever created, even if it is revoked or expired now.

        Standing keys do not count: they work as well in a service that is open to all callers.
        """
        query = select(exists().select_from(api_keys).where(api_keys.c.agent.is_(None)))
        async with transaction(self._pool) as connection:
            return bool(await connection.scalar(query))

    async def find(self, key_ids: Collection[str]) -> Mapping[str, tuple[ApiKey, bytes]]:
        """Return the given keys with their SHA-256, by key ID; unknown keys are absent."""
        query = select(api_keys).where(api_keys.c.key_id.in_(key_ids))
        async with transaction(self._pool) as connection:
            rows = (await connection.execute(query)).mappings().all()
        return {row["key_id"]: (_key(row), bytes(row["sha256"])) for row in rows}

    async def create(
        self,
        by: Caller,
        *,
        name: str,
        scopes: frozenset[KeyScope],
        tenant: str | None = None,
        expires_at: datetime | None = None,
        agent: AgentTerms | None = None,
    ) -> IssuedKey:
        """Create a key, by default for the caller's tenant; with ``agent``, a standing key.

        The revoked or expired keys of the tenant beyond the newest :data:`MAX_KEYS` are deleted.

        Raises:
            ScopeMissingError, OtherTenantError: the caller lacks the permission.
            KeyConflictError: the tenant has too many keys.
        """
        issued = _issued(
            tenant=_tenant_for(by, tenant) or by.tenant,
            name=name,
            scopes=scopes,
            created_by=by.name,
            expires_at=expires_at,
            agent=agent,
            made_by=None if agent is None else by.key_id,
        )
        async with transaction(self._pool) as connection:
            await connection.exec_driver_sql(LOCK_API_KEYS, (issued.key.tenant,))
            await _insert(connection, issued)
            await record(connection, issued.key.tenant, Act.KEY_CREATED, issued.key.key_id)
        return issued

    async def list(self, by: Caller, tenant: str | None = None) -> Sequence[ApiKey]:
        """Return the newest keys of a tenant, newest first.

        ``tenant`` defaults to the caller's own tenant; for the operator, None means all tenants.

        Raises:
            ScopeMissingError, OtherTenantError: the caller lacks the permission.
        """
        order = api_keys.c.created_at.desc(), api_keys.c.key_id.desc()
        of_tenant = select(api_keys).where(_of(_tenant_for(by, tenant)), _managed(by))
        async with transaction(self._pool) as connection:
            rows = await connection.execute(of_tenant.order_by(*order).limit(MAX_KEYS))
            return [_key(row) for row in rows.mappings()]

    async def get(self, by: Caller, key_id: str) -> ApiKey:
        """Return a key.

        Raises:
            ScopeMissingError: the caller lacks the permission.
            KeyNotFoundError: the key does not exist.
        """
        query = select(api_keys).where(
            api_keys.c.key_id == key_id, _of(_tenant_for(by, None)), _managed(by)
        )
        async with transaction(self._pool) as connection:
            row = (await connection.execute(query)).mappings().one_or_none()
        if row is None:
            raise KeyNotFoundError
        return _key(row)

    async def revoke(self, by: Caller, key_id: str) -> ApiKey:
        """Revoke a key, and the standing keys that it has made; a repetition changes nothing.

        Raises:
            ScopeMissingError: the caller lacks the permission.
            KeyNotFoundError: the key does not exist.
        """
        now = datetime.now(UTC)
        revoked_at = func.coalesce(api_keys.c.revoked_at, now)
        revoked = (
            update(api_keys)
            .where(api_keys.c.key_id == key_id, _of(_tenant_for(by, None)), _managed(by))
            .values(revoked_at=revoked_at)
            .returning(*api_keys.c)
        )
        async with transaction(self._pool) as connection:
            row = (await connection.execute(revoked)).mappings().one_or_none()
            if row is None:
                raise KeyNotFoundError
            if row["revoked_at"] == now:
                await record(connection, row["tenant_id"], Act.KEY_REVOKED, key_id)
            await _revoke_made_by(connection, [key_id], now)
        return _key(row)

    async def open_runs_of(self, key_ids: Collection[str]) -> Sequence[RunKey]:
        """Return the open runs of revoked standing keys, and of those that revoked keys have made.

        A key that replaced one by a rotation continues its runs, so that they are not returned.
        """
        async with transaction(self._pool) as connection:
            rows = await connection.exec_driver_sql(_RUNS_OF_KEYS, {"key_ids": list(key_ids)})
            return [RunKey(row.tenant_id, row.run_id) for row in rows]

    async def revoke_all(
        self, by: Caller, *, before: datetime, tenant: str | None = None, but: Collection[str] = ()
    ) -> Sequence[ApiKey]:
        """Revoke all working keys that were created before a time; return them, oldest first.

        ``tenant`` is as in :meth:`list`. ``but`` are IDs of keys that stay valid.

        Raises:
            ScopeMissingError, OtherTenantError: the caller lacks the permission.
            KeyNotFoundError: a key in ``but`` does not exist; no key was revoked.
        """
        now, of_tenant = datetime.now(UTC), _of(_tenant_for(by, tenant))
        existing = select(func.count()).where(api_keys.c.key_id.in_(but), of_tenant)
        revoked = (
            update(api_keys)
            .where(
                api_keys.c.created_at < before,
                api_keys.c.key_id.not_in(but),
                api_keys.c.revoked_at.is_(None),
                func.coalesce(api_keys.c.expires_at, _LATEST) > now,
                of_tenant,
            )
            .values(revoked_at=now)
            .returning(*api_keys.c)
        )
        async with transaction(self._pool) as connection:
            if await connection.scalar(existing) != len(set(but)):
                raise KeyNotFoundError
            keys = [_key(row) for row in (await connection.execute(revoked)).mappings()]
            for key in keys:
                await record(connection, key.tenant, Act.KEY_REVOKED, key.key_id)
            keys += await _revoke_made_by(connection, [key.key_id for key in keys], now)
        return sorted(keys, key=attrgetter("created_at"))

    async def rotate(
        self, by: Caller, key_id: str, *, overlap: timedelta = DEFAULT_OVERLAP
    ) -> IssuedKey:
        """Create a key that replaces another; the old key stays valid for ``overlap``.

        The new key has the same name, scopes and lifetime as the old one. The lifetime starts now.

        Raises:
            ScopeMissingError: the caller lacks the permission.
            KeyNotFoundError: the key does not exist.
            KeyConflictError: the key is revoked, expired or already rotated, or the tenant would
                have too many keys.
        """
        tenant, stored = _tenant_for(by, None), await self.find([key_id])
        if not stored or tenant not in (None, stored[key_id][0].tenant):
            raise KeyNotFoundError
        old, now = stored[key_id][0], datetime.now(UTC)
        if by.anonymous and old.agent is None:
            raise KeyNotFoundError
        if not old.works_at(now) or old.rotated_to is not None:
            raise KeyConflictError
        issued = _successor(old, by, now)
        until = min(now + overlap, old.expires_at or now + overlap)
        replaced = (
            update(api_keys)
            .where(
                api_keys.c.key_id == old.key_id,
                api_keys.c.revoked_at.is_(None),
                api_keys.c.rotated_to.is_(None),
            )
            .values(rotated_to=issued.key.key_id, expires_at=until)
            .returning(api_keys.c.key_id)
        )
        async with transaction(self._pool) as connection:
            await connection.exec_driver_sql(LOCK_API_KEYS, (old.tenant,))
            if (await connection.execute(replaced)).one_or_none() is None:
                raise KeyConflictError
            await _insert(connection, issued)
            standing = update(api_keys).where(api_keys.c.made_by == old.key_id)
            await connection.execute(standing.values(made_by=issued.key.key_id))
            await record(connection, old.tenant, Act.KEY_ROTATED, key_id)
        return issued


def _successor(old: ApiKey, by: Caller, now: datetime) -> IssuedKey:
    """Issue a key with the name, scopes and lifetime of another."""
    span = None if old.expires_at is None else old.expires_at - old.created_at
    return _issued(
        tenant=old.tenant,
        name=old.name,
        scopes=old.scopes,
        created_by=by.name,
        expires_at=None if span is None else now + min(span, _LATEST - now),
        agent=old.agent,
        account=old.account,
        made_by=old.made_by,
    )


async def _revoke_made_by(
    connection: AsyncConnection, key_ids: Collection[str], now: datetime
) -> Sequence[ApiKey]:
    """Revoke the standing keys that these keys have made; return them."""
    revoked = (
        update(api_keys)
        .where(api_keys.c.made_by.in_(key_ids), api_keys.c.revoked_at.is_(None))
        .values(revoked_at=now)
        .returning(*api_keys.c)
    )
    keys = [_key(row) for row in (await connection.execute(revoked)).mappings()]
    for key in keys:
        await record(connection, key.tenant, Act.KEY_REVOKED, key.key_id)
    return keys


async def _insert(connection: AsyncConnection, issued: IssuedKey) -> None:
    """Insert a key for a locked tenant, and delete the oldest inactive keys beyond the maximum."""
    key = issued.key
    revoked_at, expires_at = api_keys.c.revoked_at, api_keys.c.expires_at
    works = revoked_at.is_(None) & (expires_at.is_(None) | (expires_at > key.created_at))
    working = select(func.count()).where(_of(key.tenant), works)
    if (await connection.scalar(working) or 0) >= MAX_KEYS:
        raise KeyConflictError
    # An ended API key keeps the service closed, so ended standing keys must not displace it.
    same_kind = (api_keys.c.agent.is_(None)) == (key.agent is None)
    ended = select(api_keys.c.key_id).where(_of(key.tenant), ~works, same_kind)
    useless = ended.order_by(func.least(revoked_at, expires_at).desc()).offset(MAX_KEYS)
    await connection.execute(delete(api_keys).where(api_keys.c.key_id.in_(useless)))
    values = {name: getattr(key, name) for name in _FIELDS}
    scopes = sorted(scope.value for scope in key.scopes)
    agent = None if key.agent is None else key.agent.to_json()
    row = {**values, "tenant_id": key.tenant, "scopes": scopes, "agent": agent}
    row["sha256"] = sha256_of(issued.secret)
    await connection.execute(insert(api_keys).values(row))


def _of(tenant: str | None) -> ColumnElement[bool]:
    return true() if tenant is None else api_keys.c.tenant_id == tenant


def _managed(by: Caller) -> ColumnElement[bool]:
    """Select the keys that a caller may manage.

    Without a credential, these are standing keys: a process may notice the first API key late.
    """
    return api_keys.c.agent.is_not(None) if by.anonymous else true()


def _key(row: Row) -> ApiKey:
    fields = {name: row[name] for name in _FIELDS}
    agent = None if row["agent"] is None else AgentTerms(**row["agent"])
    scopes = frozenset(map(KeyScope, row["scopes"]))
    return ApiKey(tenant=row["tenant_id"], scopes=scopes, agent=agent, **fields)


def _issued(
    *,
    tenant: str,
    name: str,
    scopes: frozenset[KeyScope],
    created_by: str,
    expires_at: datetime | None,
    agent: AgentTerms | None = None,
    account: str | None = None,
    made_by: str | None = None,
) -> IssuedKey:
    key_id = secrets.token_hex(8)
    key = ApiKey(
        key_id=key_id,
        tenant=tenant,
        name=name,
        scopes=scopes,
        created_at=datetime.now(UTC),
        created_by=created_by,
        expires_at=expires_at,
        agent=agent,
        account=None if agent is None else account or key_id,
        made_by=made_by,
    )
    prefix = KEY_PREFIX if agent is None else AGENT_PREFIX
    return IssuedKey(key, f"{prefix}{key_id}_{secrets.token_hex(32)}")


def _tenant_for(by: Caller, tenant: str | None) -> str | None:
    """Resolve and authorize the tenant of a key request; None means all tenants."""
    if KeyScope.ADMIN not in by.scopes:
        raise ScopeMissingError(KeyScope.ADMIN)
    if by.operator:
        return tenant
    if tenant not in (None, by.tenant):
        raise OtherTenantError
    return by.tenant
