"""Deliveries of webhooks in memory, for tests of the HTTP layer: nothing is ever sent."""

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from app.webhooks.delivery import (
    Delivery,
    DeliveryNotFoundError,
    DeliveryPage,
    DeliveryPendingError,
    DeliveryStatus,
    SecretInfo,
)


class MemoryWebhooks:
    """Implements the store of deliveries that callers see."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self._secrets: dict[str, list[SecretInfo]] = {}

    async def find(
        self,
        tenant: str,
        *,
        status: DeliveryStatus | None,
        run_id: str | None,
        limit: int,
        cursor: str | None,
    ) -> DeliveryPage:
        mine = [
            each
            for each in self.deliveries
            if each.tenant == tenant
            and status in (None, each.status)
            and run_id in (None, each.run_id)
        ]
        return DeliveryPage(mine[:limit], None)

    async def get(self, tenant: str, delivery_id: str) -> Delivery:
        for each in self.deliveries:
            if (each.tenant, each.delivery_id) == (tenant, delivery_id):
                return each
        raise DeliveryNotFoundError

    async def redeliver(self, tenant: str, delivery_id: str) -> Delivery:
        found = await self.get(tenant, delivery_id)
        if found.status is DeliveryStatus.PENDING:
            raise DeliveryPendingError
        again = replace(found, status=DeliveryStatus.PENDING, attempts=0, due_at=datetime.now(UTC))
        self.deliveries[self.deliveries.index(found)] = again
        return again

    async def rotate(self, tenant: str, secret: str, *, previous_seconds: float) -> SecretInfo:
        now = datetime.now(UTC)
        before = self._secrets.get(tenant, [])[:1]
        new = SecretInfo(before[0].version + 1 if before else 1, now, None)
        expiring = [
            replace(each, expires_at=now + timedelta(seconds=previous_seconds))
            for each in before
            if previous_seconds
        ]
        self._secrets[tenant] = [new, *expiring]
        return new

    async def secrets(self, tenant: str) -> Sequence[SecretInfo]:
        return self._secrets.get(tenant, [])
