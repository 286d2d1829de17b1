"""The usage of tenants, next to their quotas."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Final, NamedTuple

from caseworker.runs.quotas import Quota

WARN_PERCENT: Final = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaUse:
    """The current usage of the quantities that a tenant's quota limits."""

    running: int = 0
    queued: int = 0
    cost_usd_today: Decimal = Decimal(0)
    reserved_usd_today: Decimal = Decimal(0)
    cost_usd_this_month: Decimal = Decimal(0)
    reserved_usd_this_month: Decimal = Decimal(0)
    stored_bytes: int = 0
    """Size in bytes of stored runs, files, definitions, threads, messages and schedules, without
    indexes."""
    definitions: int = 0
    threads: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantQuota:
    """The quota of a tenant and its current usage."""

    tenant: str
    quota: Quota
    is_default: bool
    """Whether the tenant has the default quota from the configuration."""
    use: QuotaUse = field(default_factory=QuotaUse)
    updated_at: datetime | None = None

    @property
    def nearly_full(self) -> Sequence[str]:
        """Names of the storage limits that are at least :data:`WARN_PERCENT` percent used."""
        return [
            name
            for name, limit in self.quota.storage.items()
            if limit is not None and 100 * getattr(self.use, name) >= WARN_PERCENT * limit
        ]


class NearlyFull(NamedTuple):
    """A tenant's storage limit that is at least :data:`WARN_PERCENT` percent used."""

    tenant: str
    dimension: str
    used: int
    limit: int
