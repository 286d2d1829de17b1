"""Quotas in memory, for tests of the routes; only the database enforces them."""

from collections.abc import Sequence

from app.runs.quotas import Quota, TenantQuota


class MemoryQuotas:
    """Implements the store of quotas."""

    def __init__(self) -> None:
        """Start without any."""
        self._own: dict[str, Quota] = {}

    async def get(self, tenant: str) -> TenantQuota:
        quota = self._own.get(tenant)
        return TenantQuota(tenant=tenant, quota=quota or Quota(), is_default=quota is None)

    async def find(self) -> Sequence[TenantQuota]:
        return [await self.get(tenant) for tenant in sorted(self._own)]

    async def put(self, tenant: str, quota: Quota) -> None:
        self._own[tenant] = quota

    async def delete(self, tenant: str) -> bool:
        return self._own.pop(tenant, None) is not None
