"""API keys in memory: the port of ``app.access.keys`` as a database keeps its promises."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from app.access.errors import KeyConflictError
from app.access.keys import ApiKey


class MemoryKeys:
    """Implements the store of keys, and counts what it is asked."""

    def __init__(self) -> None:
        self._keys: dict[str, tuple[ApiKey, bytes]] = {}
        self.asked = 0

    async def any(self) -> bool:
        return bool(self._keys)

    async def find(self, key_id: str) -> tuple[ApiKey, bytes] | None:
        self.asked += 1
        return self._keys.get(key_id)

    async def list(self, tenant: str | None, *, limit: int) -> Sequence[ApiKey]:
        found = [key for key, _ in self._keys.values() if tenant in (None, key.tenant)]
        return sorted(found, key=lambda key: (key.created_at, key.key_id), reverse=True)[:limit]

    async def add(self, key: ApiKey, sha256: bytes, *, most: int) -> None:
        of_tenant = [one for one, _ in self._keys.values() if one.tenant == key.tenant]
        if sum(one.works_at(datetime.now(UTC)) for one in of_tenant) >= most:
            raise KeyConflictError
        self._keys[key.key_id] = key, sha256

    async def revoke(self, key_id: str, tenant: str | None, at: datetime) -> ApiKey | None:
        found = self._keys.get(key_id)
        if found is None or tenant not in (None, found[0].tenant):
            return None
        revoked = replace(found[0], revoked_at=found[0].revoked_at or at)
        self._keys[key_id] = revoked, found[1]
        return revoked

    async def rotate(self, old: ApiKey, new: ApiKey, sha256: bytes, *, until: datetime) -> bool:
        stored, stored_sha256 = self._keys[old.key_id]
        if stored.revoked_at is not None or stored.rotated_to is not None:
            return False
        self._keys[old.key_id] = (
            replace(stored, rotated_to=new.key_id, expires_at=until),
            stored_sha256,
        )
        self._keys[new.key_id] = new, sha256
        return True
