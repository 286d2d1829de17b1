"""What a tenant may have at once and spend, and what it is told when that is used up.

A quota is enforced by the transaction that accepts a run, or that claims one from the queue: no
number of processes lets a tenant have more. A run reserves its own limit of cost until it ends;
then what it has cost takes the place of that.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from decimal import Decimal
from typing import Final, NamedTuple, Protocol


def few_of_queue(places: int) -> int:
    """Return how many runs of its own a tenant may have in a full queue of so many places."""
    return places // 10 or 1


STORED: Final = ("stored_bytes", "definitions", "threads")
"""The dimensions of storage, as :class:`QuotaUse` names them."""

WARN_PERCENT: Final = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Queueing:
    """When a run may begin beside others of its tenant."""

    priority: int = 0
    """Of two queued runs the one with the higher one is begun first."""
    concurrency_key: str | None = None
    """Of all runs with the same one, at most ``concurrency_limit`` are under way."""
    concurrency_limit: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """The limits of a tenant; None is unlimited, 0 lets nothing through."""

    max_running: int | None = None
    """Runs that are executed at once; further ones wait in the queue."""
    max_queued: int | None = None
    max_runs_per_minute: int | None = None
    """As many may come at once; the allowance refills steadily."""
    max_cost_usd_per_day: Decimal | None = None
    """Of the runs that were accepted on one day, in UTC."""
    max_cost_usd_per_month: Decimal | None = None
    max_stored_bytes: int | None = None
    """What the tenant has stored, as :class:`QuotaUse` counts it."""
    max_definitions: int | None = None
    """Versions of graphs and agents."""
    max_threads: int | None = None
    models: tuple[str, ...] | None = None
    """The only models that may be used, by their names; None: any."""

    @property
    def limits_cost(self) -> bool:
        """Whether runs must reserve what they may cost."""
        return self.max_cost_usd_per_day is not None or self.max_cost_usd_per_month is not None

    @property
    def is_unlimited(self) -> bool:
        """Whether there is nothing to enforce."""
        return self == UNLIMITED

    @property
    def without_storage(self) -> "Quota":
        """The same quota with unlimited storage."""
        return replace(self, max_stored_bytes=None, max_definitions=None, max_threads=None)

    @property
    def storage(self) -> Mapping[str, int | None]:
        """The limits of :data:`STORED`."""
        return {name: getattr(self, f"max_{name}") for name in STORED}


UNLIMITED: Final = Quota()


@dataclass(frozen=True, slots=True, kw_only=True)
class RateState:
    """How a tenant stands to its rate of runs."""

    limit: int
    """Runs a minute."""
    remaining: int
    """Runs that may be sent at once now."""
    reset_seconds: int
    """Until one more may be sent, or until all are there again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaUse:
    """What a tenant has and has spent, at one moment."""

    running: int = 0
    queued: int = 0
    cost_usd_today: Decimal = Decimal(0)
    reserved_usd_today: Decimal = Decimal(0)
    cost_usd_this_month: Decimal = Decimal(0)
    reserved_usd_this_month: Decimal = Decimal(0)
    stored_bytes: int = 0
    """Contents of runs, files, definitions, threads, messages and schedules; without indexes."""
    definitions: int = 0
    threads: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantQuota:
    """The quota of a tenant, and how much of it is used."""

    tenant: str
    quota: Quota
    is_default: bool
    """Whether it is that of the configuration."""
    use: QuotaUse = field(default_factory=QuotaUse)
    updated_at: datetime | None = None

    @property
    def nearly_full(self) -> Sequence[str]:
        """The dimensions of storage of which at least :data:`WARN_PERCENT` percent are used."""
        return [
            name
            for name, limit in self.quota.storage.items()
            if limit is not None and 100 * getattr(self.use, name) >= WARN_PERCENT * limit
        ]


class NearlyFull(NamedTuple):
    """A limit of storage of which a tenant has used at least :data:`WARN_PERCENT` percent."""

    tenant: str
    dimension: str
    used: int
    limit: int


class QuotaExceededError(Exception):
    """A quota lets no further run in now."""

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
        """What was used, reserved and asked for, and what is allowed."""
        names = ("used", "reserved", "requested", "limit")
        return {name: getattr(self, name) for name in names}


class QuotaStore(Protocol):
    """Keeps the quotas of tenants that have one of their own."""

    async def get(self, tenant: str) -> TenantQuota:
        """Return a tenant's quota, its own or that of the configuration, and its use."""
        ...

    async def find(self) -> Sequence[TenantQuota]:
        """Return the tenants that have a quota of their own, without their use."""
        ...

    async def put(self, tenant: str, quota: Quota) -> None:
        """Give a tenant a quota of its own; it holds for the next run on every replica."""
        ...

    async def delete(self, tenant: str) -> bool:
        """Give a tenant the quota of the configuration again; False if it had that."""
        ...

    async def nearly_full(self) -> Sequence[NearlyFull]:
        """Return what :attr:`TenantQuota.nearly_full` names, of all tenants."""
        ...
