"""API keys: format, creation, rotation, revocation and storage.

A key is ``cwk_<id>_<secret>``. The ID identifies its row. The secret has 256 random bits; only the
SHA-256 of the whole key is stored, so a copy of the database grants no access. A slow password hash
would add nothing, because a secret of that size cannot be guessed.
"""

import hashlib
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from caseworker.platform.caller import (
    Caller,
    KeyScope,
    OtherTenantError,
    ScopeMissingError,
    with_implied,
)

FORM: Final = re.compile(r"cwk_([0-9a-f]{16})_[0-9a-f]{64}", re.ASCII)
MAX_KEYS: Final = 1000
"""Maximum number of active keys per tenant; also the maximum length of a list of keys.

A tenant also keeps at most this many revoked or expired keys.
"""
MAX_OVERLAP: Final = timedelta(days=30)
"""Maximum time that the old key can remain valid after a rotation."""
USUAL_OVERLAP: Final = timedelta(days=1)
"""Default time that the old key remains valid after a rotation."""
_LATEST: Final = datetime.max.replace(tzinfo=UTC)


class KeyNotFoundError(Exception):
    """The key does not exist or belongs to another tenant."""


class KeyConflictError(Exception):
    """The key is revoked, expired or already rotated, or the tenant has too many keys."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """A stored API key, without its secret."""

    key_id: str
    tenant: str
    name: str
    """Name of the key, which identifies the caller in receipts and records."""
    scopes: frozenset[KeyScope]
    """Scopes as granted to the key, without implied ones."""
    created_at: datetime
    created_by: str
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    rotated_to: str | None = None
    """ID of the key that replaces this one; None if it was not rotated."""

    def works_at(self, moment: datetime) -> bool:
        """Return whether the key is neither revoked nor expired at ``moment``."""
        return self.revoked_at is None and (self.expires_at is None or moment < self.expires_at)

    @property
    def caller(self) -> Caller:
        """The caller that the key authenticates."""
        return Caller(self.tenant, self.name, with_implied(self.scopes))


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A new key with its secret, which is shown only once."""

    key: ApiKey
    secret: str = field(repr=False)
    """The complete key, as callers send it."""


class KeyStore(Protocol):
    """Stores API keys. If ``tenant`` is None, a method applies to all tenants."""

    async def any(self) -> bool:
        """Return whether a key was ever created, even if it is revoked or expired now."""
        ...

    async def find(self, key_ids: Collection[str]) -> Mapping[str, tuple[ApiKey, bytes]]:
        """Return the given keys with their SHA-256, by key ID; unknown keys are absent."""
        ...

    async def list(self, tenant: str | None, *, limit: int) -> Sequence[ApiKey]:
        """Return up to ``limit`` keys, newest first."""
        ...

    async def add(self, key: ApiKey, sha256: bytes, *, most: int) -> None:
        """Store a key, and delete its tenant's revoked or expired keys beyond the newest ``most``.

        Raises:
            KeyConflictError: its tenant already has ``most`` active keys.
        """
        ...

    async def revoke(self, key_id: str, tenant: str | None, at: datetime) -> ApiKey | None:
        """Revoke a key and return it; None if it does not exist. Repeating this has no effect."""
        ...

    async def rotate(
        self, old: ApiKey, new: ApiKey, sha256: bytes, *, until: datetime, most: int
    ) -> bool:
        """Store ``new`` as :meth:`add` does, and expire ``old`` at ``until``.

        Return False and change nothing if ``old`` was already rotated or revoked.

        Raises:
            KeyConflictError: the tenant would have more than ``most`` active keys.
        """
        ...


class Keys:
    """Key management for callers.

    Callers manage the keys of their own tenant; the operator manages those of any tenant.
    """

    def __init__(self, store: KeyStore) -> None:
        self._store = store

    async def create(
        self,
        by: Caller,
        *,
        name: str,
        scopes: frozenset[KeyScope],
        tenant: str | None = None,
        expires_at: datetime | None = None,
    ) -> IssuedKey:
        """Create a key, by default for the caller's tenant.

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
        )
        await self._store.add(issued.key, sha256_of(issued.secret), most=MAX_KEYS)
        return issued

    async def list(self, by: Caller, tenant: str | None = None) -> Sequence[ApiKey]:
        """Return the newest keys of a tenant, newest first.

        ``tenant`` defaults to the caller's own tenant; for the operator, None means all tenants.

        Raises:
            ScopeMissingError, OtherTenantError: the caller lacks the permission.
        """
        return await self._store.list(_tenant_for(by, tenant), limit=MAX_KEYS)

    async def revoke(self, by: Caller, key_id: str) -> ApiKey:
        """Revoke a key; revoking it again changes nothing.

        Raises:
            ScopeMissingError: the caller lacks the permission.
            KeyNotFoundError: the key does not exist.
        """
        revoked = await self._store.revoke(key_id, _tenant_for(by, None), datetime.now(UTC))
        if revoked is None:
            raise KeyNotFoundError
        return revoked

    async def rotate(
        self, by: Caller, key_id: str, *, overlap: timedelta = USUAL_OVERLAP
    ) -> IssuedKey:
        """Create a key that replaces another; the old key stays valid for ``overlap``.

        The new key has the same name, scopes and lifetime as the old one. The lifetime starts now.

        Raises:
            ScopeMissingError: the caller lacks the permission.
            KeyNotFoundError: the key does not exist.
            KeyConflictError: the key is revoked, expired or already rotated, or the tenant would
                have too many keys.
        """
        tenant, found = _tenant_for(by, None), await self._store.find([key_id])
        if not found or tenant not in (None, found[key_id][0].tenant):
            raise KeyNotFoundError
        old, now = found[key_id][0], datetime.now(UTC)
        if not old.works_at(now) or old.rotated_to is not None:
            raise KeyConflictError
        span = None if old.expires_at is None else old.expires_at - old.created_at
        issued = _issued(
            tenant=old.tenant,
            name=old.name,
            scopes=old.scopes,
            created_by=by.name,
            expires_at=None if span is None else now + min(span, _LATEST - now),
        )
        until = min(now + overlap, old.expires_at or now + overlap)
        sha256 = sha256_of(issued.secret)
        if not await self._store.rotate(old, issued.key, sha256, until=until, most=MAX_KEYS):
            raise KeyConflictError
        return issued


def sha256_of(credential: str) -> bytes:
    """Return the SHA-256 of a credential, which is stored for keys and used to cache results."""
    return hashlib.sha256(credential.encode()).digest()


def _issued(
    *,
    tenant: str,
    name: str,
    scopes: frozenset[KeyScope],
    created_by: str,
    expires_at: datetime | None,
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
    )
    return IssuedKey(key, f"cwk_{key_id}_{secrets.token_hex(32)}")


def _tenant_for(by: Caller, named: str | None) -> str | None:
    """Resolve and authorize the tenant of a key request; None means all tenants."""
    if KeyScope.ADMIN not in by.scopes:
        raise ScopeMissingError(KeyScope.ADMIN)
    if by.operator:
        return named
    if named not in (None, by.tenant):
        raise OtherTenantError
    return by.tenant
