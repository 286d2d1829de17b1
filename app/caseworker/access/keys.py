"""API keys: what they look like, how they are made, replaced and revoked, and where they are kept.

A key is ``cwk_<id>_<secret>``. The id finds its row; of the secret, 256 random bits, only the
SHA-256 is stored, so a copy of the database lets nobody in. A stretched hash would add nothing: a
secret of that size cannot be guessed, however fast.
"""

import hashlib
import re
import secrets
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final, Protocol

from caseworker.access.caller import Caller, Scope, with_implied
from caseworker.access.errors import (
    KeyConflictError,
    KeyNotFoundError,
    OtherTenantError,
    ScopeMissingError,
)

FORM: Final = re.compile(r"cwk_([0-9a-f]{16})_[0-9a-f]{64}", re.ASCII)
MAX_KEYS: Final = 1000
"""Of a tenant: keys that work, keys that do not any more, and keys on a list."""
MAX_OVERLAP: Final = timedelta(days=30)
USUAL_OVERLAP: Final = timedelta(days=1)
"""How long the old key works beside the new one, after a rotation: at most, and usually."""
_LATEST: Final = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiKey:
    """What is known of a key; its secret is not."""

    key_id: str
    tenant: str
    name: str
    """What receipts call whoever uses it."""
    scopes: frozenset[Scope]
    """As they were given, without those that they imply."""
    created_at: datetime
    created_by: str
    expires_at: datetime | None = None
    revoked_at: datetime | None = None
    rotated_to: str | None = None
    """The id of the key that replaces it."""

    def works_at(self, moment: datetime) -> bool:
        """Tell whether the key lets anybody in at a moment."""
        return self.revoked_at is None and (self.expires_at is None or moment < self.expires_at)

    @property
    def caller(self) -> Caller:
        """Whoever uses it."""
        return Caller(self.tenant, self.name, with_implied(self.scopes))


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A key that was just made, and the only sight of it."""

    key: ApiKey
    secret: str = field(repr=False)
    """The whole key, as callers send it."""


class KeyStore(Protocol):
    """Keeps keys. A ``tenant`` of None stands for all of them."""

    async def any(self) -> bool:
        """Tell whether a key was ever made, whatever became of it."""
        ...

    async def find(self, key_ids: Collection[str]) -> Mapping[str, tuple[ApiKey, bytes]]:
        """Return the keys that exist, each with its SHA-256, by their ids."""
        ...

    async def list(self, tenant: str | None, *, limit: int) -> Sequence[ApiKey]:
        """Return the newest keys, the newest first."""
        ...

    async def add(self, key: ApiKey, sha256: bytes, *, most: int) -> None:
        """Store a key; of those that work no more, keep the ``most`` that ended last.

        Raises:
            KeyConflictError: its tenant has ``most`` keys that work.
        """
        ...

    async def revoke(self, key_id: str, tenant: str | None, at: datetime) -> ApiKey | None:
        """Revoke a key, once; return it as it is then, or None if there is none."""
        ...

    async def rotate(
        self, old: ApiKey, new: ApiKey, sha256: bytes, *, until: datetime, most: int
    ) -> bool:
        """Store ``new`` as :meth:`add` does, and let ``old`` end at ``until``.

        False, and nothing done, if ``old`` was rotated or revoked.

        Raises:
            KeyConflictError: the tenant would have more than ``most`` keys that work.
        """
        ...


class Keys:
    """What callers can do with keys: those of their tenant, or of any if they are the operator."""

    def __init__(self, store: KeyStore) -> None:
        self._store = store

    async def create(
        self,
        by: Caller,
        *,
        name: str,
        scopes: frozenset[Scope],
        tenant: str | None = None,
        expires_at: datetime | None = None,
    ) -> IssuedKey:
        """Make a key.

        Raises:
            ScopeMissingError, OtherTenantError: the caller may not.
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
        """Return the newest keys; without ``tenant`` those of the caller's, the operator's all.

        Raises:
            ScopeMissingError, OtherTenantError: the caller may not.
        """
        return await self._store.list(_tenant_for(by, tenant), limit=MAX_KEYS)

    async def revoke(self, by: Caller, key_id: str) -> ApiKey:
        """Let a key in no more; one that was revoked stays as it is.

        Raises:
            ScopeMissingError: the caller may not.
            KeyNotFoundError: there is none.
        """
        revoked = await self._store.revoke(key_id, _tenant_for(by, None), datetime.now(UTC))
        if revoked is None:
            raise KeyNotFoundError
        return revoked

    async def rotate(
        self, by: Caller, key_id: str, *, overlap: timedelta = USUAL_OVERLAP
    ) -> IssuedKey:
        """Make a key that replaces another, which works on for ``overlap``.

        It has the same name, scopes and, from now on, span of life.

        Raises:
            ScopeMissingError: the caller may not.
            KeyNotFoundError: there is no such key.
            KeyConflictError: the key works no more or was rotated already, or the tenant would
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
    """Return what is stored of a key, and what answers about credentials are kept under."""
    return hashlib.sha256(credential.encode()).digest()


def _issued(
    *,
    tenant: str,
    name: str,
    scopes: frozenset[Scope],
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
    """Return the tenant whose keys a caller means; None is all of them."""
    if not by.may(Scope.ADMIN):
        raise ScopeMissingError(Scope.ADMIN)
    if by.operator:
        return named
    if named not in (None, by.tenant):
        raise OtherTenantError
    return by.tenant
