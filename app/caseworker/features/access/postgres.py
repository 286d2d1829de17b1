"""Storage for API keys in Postgres; see :mod:`caseworker.features.access.keys`."""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

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
from sqlalchemy.ext.asyncio import AsyncConnection

from caseworker.features.access.keys import ApiKey, KeyConflictError
from caseworker.platform.caller import KeyScope
from caseworker.platform.postgres.engines import Pool, transaction
from caseworker.runs.postgres.rows import Row
from caseworker.runs.postgres.tables import INSTANT, columns, metadata

api_keys = Table(
    "api_keys",
    metadata,
    Column("key_id", Text, primary_key=True),
    *columns(Text, "tenant_id name created_by", nullable=False),
    Column("scopes", ARRAY(Text), nullable=False),
    Column("sha256", LargeBinary, nullable=False),
    Column("created_at", INSTANT, nullable=False),
    *columns(INSTANT, "expires_at revoked_at"),
    *columns(Text, "rotated_to"),
)

_FIELDS = tuple(ApiKey.__dataclass_fields__.keys() - {"tenant", "scopes"})


class PostgresKeys:
    """Stores API keys in Postgres.

    Tenants are separated by conditions in the queries, not by row-level security.
    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    async def any(self) -> bool:
        """Return whether a key was ever created, even if it is revoked now."""
        async with transaction(self._pool) as connection:
            return bool(await connection.scalar(select(exists().select_from(api_keys))))

    async def find(self, key_ids: Collection[str]) -> Mapping[str, tuple[ApiKey, bytes]]:
        """Return the given keys with their SHA-256, by key ID; unknown keys are absent."""
        query = select(api_keys).where(api_keys.c.key_id.in_(key_ids))
        async with transaction(self._pool) as connection:
            rows = (await connection.execute(query)).mappings().all()
        return {row["key_id"]: (_key(row), bytes(row["sha256"])) for row in rows}

    async def list(self, tenant: str | None, *, limit: int) -> Sequence[ApiKey]:
        """Return up to ``limit`` keys, newest first."""
        order = api_keys.c.created_at.desc(), api_keys.c.key_id.desc()
        query = select(api_keys).where(_of(tenant)).order_by(*order).limit(limit)
        async with transaction(self._pool) as connection:
            return [_key(row) for row in (await connection.execute(query)).mappings()]

    async def add(self, key: ApiKey, sha256: bytes, *, most: int) -> None:
        """Store a key while holding the tenant's lock.

        Raises:
            KeyConflictError: the tenant already has ``most`` active keys.
        """
        async with transaction(self._pool) as connection:
            await _lock(connection, key.tenant)
            await _insert(connection, key, sha256, most)

    async def revoke(self, key_id: str, tenant: str | None, at: datetime) -> ApiKey | None:
        """Revoke a key and return it; None if it does not exist. Repeating this has no effect."""
        revoked = (
            update(api_keys)
            .where(api_keys.c.key_id == key_id, _of(tenant))
            .values(revoked_at=func.coalesce(api_keys.c.revoked_at, at))
            .returning(*api_keys.c)
        )
        async with transaction(self._pool) as connection:
            row = (await connection.execute(revoked)).mappings().one_or_none()
        return None if row is None else _key(row)

    async def rotate(
        self, old: ApiKey, new: ApiKey, sha256: bytes, *, until: datetime, most: int
    ) -> bool:
        """Store ``new`` and let ``old`` expire at ``until``.

        Return False and change nothing if ``old`` was already rotated or revoked.
        """
        replaced = (
            update(api_keys)
            .where(
                api_keys.c.key_id == old.key_id,
                api_keys.c.revoked_at.is_(None),
                api_keys.c.rotated_to.is_(None),
            )
            .values(rotated_to=new.key_id, expires_at=until)
            .returning(api_keys.c.key_id)
        )
        async with transaction(self._pool) as connection:
            await _lock(connection, new.tenant)
            if (await connection.execute(replaced)).one_or_none() is None:
                return False
            await _insert(connection, new, sha256, most)
        return True


async def _lock(connection: AsyncConnection, tenant: str) -> None:
    lock = func.pg_advisory_xact_lock(func.hashtextextended(f"keys {tenant}", 0))
    await connection.execute(select(lock))


async def _insert(connection: AsyncConnection, key: ApiKey, sha256: bytes, most: int) -> None:
    """Insert a key for a locked tenant, and delete the inactive keys beyond the newest ``most``."""
    revoked_at, expires_at = api_keys.c.revoked_at, api_keys.c.expires_at
    works = revoked_at.is_(None) & (expires_at.is_(None) | (expires_at > key.created_at))
    working = select(func.count()).where(_of(key.tenant), works)
    if (await connection.scalar(working) or 0) >= most:
        raise KeyConflictError
    ended = select(api_keys.c.key_id).where(_of(key.tenant), ~works)
    useless = ended.order_by(func.least(revoked_at, expires_at).desc()).offset(most)
    await connection.execute(delete(api_keys).where(api_keys.c.key_id.in_(useless)))
    values = {name: getattr(key, name) for name in _FIELDS}
    scopes = sorted(scope.value for scope in key.scopes)
    row = {**values, "tenant_id": key.tenant, "scopes": scopes, "sha256": sha256}
    await connection.execute(insert(api_keys).values(row))


def _of(tenant: str | None) -> ColumnElement[bool]:
    return true() if tenant is None else api_keys.c.tenant_id == tenant


def _key(row: Row) -> ApiKey:
    named = {name: row[name] for name in _FIELDS}
    return ApiKey(tenant=row["tenant_id"], scopes=frozenset(map(KeyScope, row["scopes"])), **named)
