"""API keys in memory: the port of ``app.access.keys`` as a database keeps its promises."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime

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
        ended = [one for one in of_tenant if not one.works_at(key.created_at)]
        if len(of_tenant) - len(ended) >= most:
            raise KeyConflictError
        for one in sorted(ended, key=_ended_at, reverse=True)[most:]:
            del self._keys[one.key_id]
        self._keys[key.key_id] = key, sha256

    async def revoke(self, key_id: str, tenant: str | None, at: datetime) -> ApiKey | None:
        found = self._keys.get(key_id)
        if found is None or tenant not in (None, found[0].tenant):
            return None
        revoked = replace(found[0], revoked_at=found[0].revoked_at or at)
        self._keys[key_id] = revoked, found[1]
        return revoked

    async def rotate(
        self, old: ApiKey, new: ApiKey, sha256: bytes, *, until: datetime, most: int
    ) -> bool:
        before = stored, stored_sha256 = self._keys[old.key_id]
        if stored.revoked_at is not None or stored.rotated_to is not None:
            return False
        replaced = replace(stored, rotated_to=new.key_id, expires_at=until)
        self._keys[old.key_id] = replaced, stored_sha256
        try:
            await self.add(new, sha256, most=most)
        except KeyConflictError:
            self._keys[old.key_id] = before
            raise
        return True


def _ended_at(key: ApiKey) -> datetime:
    return min(end for end in (key.revoked_at, key.expires_at) if end is not None)
