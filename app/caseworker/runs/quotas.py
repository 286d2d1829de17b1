"""Quotas of tenants: limits of concurrent runs, rate, cost and storage.

A quota is enforced by the transaction that accepts or claims a run, so it holds for any number of
processes. A run reserves its own cost limit until it ends; then its actual cost replaces the
reservation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from typing import Final, NamedTuple, Protocol


def few_of_queue(places: int) -> int:
    """Return how many queued runs a tenant may have while a queue of ``places`` is full."""
    return places // 10 or 1


STORED: Final = ("stored_bytes", "definitions", "threads")
"""The storage dimensions, as :class:`QuotaUse` names them."""

WARN_PERCENT: Final = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Queueing:
    """Scheduling of a run relative to other runs of its tenant."""

    priority: int = 0
    """Queued runs with a higher priority start first."""
    concurrency_key: str | None = None
    """At most ``concurrency_limit`` runs with the same key are active."""
    concurrency_limit: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """The limits of a tenant; None is unlimited, 0 allows nothing."""

    max_running: int | None = None
    """Maximum number of active runs; further ones stay queued."""
    max_queued: int | None = None
    max_runs_per_minute: int | None = None
    """Also the burst size; the allowance refills steadily."""
    max_cost_usd_per_day: Decimal | None = None
    """Limit for the runs accepted on one day, in UTC."""
    max_cost_usd_per_month: Decimal | None = None
    max_stored_bytes: int | None = None
    """Limit of stored data, as :class:`QuotaUse` counts it."""
    max_definitions: int | None = None
    """Maximum number of versions of graphs and agents."""
    max_threads: int | None = None
    models: tuple[str, ...] | None = None
    """Names of the only allowed models; None allows all."""

    @property
    def limits_cost(self) -> bool:
        """Whether runs must reserve their cost limit."""
        return self.max_cost_usd_per_day is not None or self.max_cost_usd_per_month is not None

    @property
    def is_unlimited(self) -> bool:
        """Whether no limit is set."""
        return self == UNLIMITED

    @property
    def without_storage(self) -> "Quota":
        """The same quota with unlimited storage."""
        return replace(self, max_stored_bytes=None, max_definitions=None, max_threads=None)

    @property
    def storage(self) -> Mapping[str, int | None]:
        """The limits of the dimensions in :data:`STORED`."""
        return {name: getattr(self, f"max_{name}") for name in STORED}


UNLIMITED: Final = Quota()


@dataclass(frozen=True, slots=True, kw_only=True)
class RateState:
    """The state of a tenant's rate limit."""

    limit: int
    """Runs per minute."""
    remaining: int
    """Number of runs that may be sent immediately."""
    reset_seconds: int
    """Seconds until one more run may be sent, or until the full allowance is restored."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaUse:
    """The current usage of a tenant."""

    running: int = 0
    queued: int = 0
    cost_usd_today: Decimal = Decimal(0)
    reserved_usd_today: Decimal = Decimal(0)
    cost_usd_this_month: Decimal = Decimal(0)
    reserved_usd_this_month: Decimal = Decimal(0)
    stored_bytes: int = 0
    """Size of runs, files, definitions, threads, messages and schedules, without indexes."""
    definitions: int = 0
    threads: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantQuota:
    """The quota of a tenant and its usage."""

    tenant: str
    quota: Quota
    is_default: bool
    """Whether it is the default from the configuration."""
    use: QuotaUse = field(default_factory=QuotaUse)
    updated_at: datetime | None = None

    @property
    def nearly_full(self) -> Sequence[str]:
        """The storage dimensions that are used to at least :data:`WARN_PERCENT` percent."""
        return [
            name
            for name, limit in self.quota.storage.items()
            if limit is not None and 100 * getattr(self.use, name) >= WARN_PERCENT * limit
        ]


class NearlyFull(NamedTuple):
    """A storage limit that a tenant uses to at least :data:`WARN_PERCENT` percent."""

    tenant: str
    dimension: str
    used: int
    limit: int


class QuotaExceededError(Exception):
    """A quota of the tenant is exhausted."""

    def __init__(
        self,
        dimension: str,
        *,
        used: Decimal | int,
        limit: Decimal | int,
        retry_after_seconds: int,
        reserved: Decimal | int = 0,
        requested: Decimal | int = 1,
        rate: RateState | None = None,
    ) -> None:
        super().__init__(
            f"{dimension}: {used} used, {reserved} reserved, {requested} requested, limit {limit}"
        )
        self.dimension = dimension
        self.used = used
        self.reserved = reserved
        self.requested = requested
        self.limit = limit
        self.retry_after_seconds = retry_after_seconds
        self.rate = rate

    @property
    def amounts(self) -> Mapping[str, Decimal | int]:
        """The amounts used, reserved and requested, and the limit."""
        names = ("used", "reserved", "requested", "limit")
        return {name: getattr(self, name) for name in names}


class QuotaStore(Protocol):
    """Stores individual quotas of tenants."""

    async def get(self, tenant: str) -> TenantQuota:
        """Return the quota of a tenant, individual or default, and its usage."""
        ...

    async def find(self) -> Sequence[TenantQuota]:
        """Return the tenants with an individual quota, without their usage."""
        ...

    async def put(self, tenant: str, quota: Quota) -> None:
        """Set an individual quota; it applies to the next run on every replica."""
        ...

    async def delete(self, tenant: str) -> bool:
        """Restore the default quota; return False if the tenant had no individual one."""
        ...

    async def nearly_full(self) -> Sequence[NearlyFull]:
        """Return nearly full storage limits of all tenants (:attr:`TenantQuota.nearly_full`)."""
        ...
