"""Tenant quotas: limits on concurrent runs, rate, cost and storage.

A quota is enforced by the statements that accept and claim runs, so it holds for any number of
processes. Its cost limits are those of an account in which each model call reserves its maximum
cost (:mod:`caseworker.core.budget.accounts`).

See docs/internals.md, "Accounts".
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from typing import Final, NamedTuple


def few_of_queue(places: int) -> int:
    """Return how many runs each tenant may queue even if a queue for ``places`` runs is full."""
    return places // 10 or 1


STORED: Final = ("stored_bytes", "definitions", "threads")
"""Names of the storage dimensions, as in :class:`QuotaUse`."""

WARN_PERCENT: Final = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Queueing:
    """How a run is scheduled relative to other runs of its tenant."""

    priority: int = 0
    """Priority among the tenant's queued runs: higher priorities start first."""
    concurrency_key: str | None = None
    """Key that groups runs: at most ``concurrency_limit`` runs with the same key are active. None
    means no such limit."""
    concurrency_limit: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """The limits of a tenant; for each, None means unlimited and 0 allows nothing."""

    max_running: int | None = None
    """Maximum number of active runs; further runs stay queued."""
    max_queued: int | None = None
    max_runs_per_minute: int | None = None
    """Maximum number of accepted runs per minute (token bucket). This number may be sent at once;
    afterwards the allowance refills steadily."""
    max_cost_usd_per_day: Decimal | None = None
    """Maximum cost in US dollars of the model calls that are reserved on the same day (UTC)."""
    max_cost_usd_per_month: Decimal | None = None
    max_stored_bytes: int | None = None
    """Maximum size of stored data in bytes; see :class:`QuotaUse` for what counts."""
    max_definitions: int | None = None
    """Maximum number of stored versions of graphs and agents together."""
    max_threads: int | None = None
    models: tuple[str, ...] | None = None
    """Names of the models that runs may use; None allows all models."""

    @property
    def limits_cost(self) -> bool:
        """Whether each model call has to reserve its maximum cost."""
        return self.max_cost_usd_per_day is not None or self.max_cost_usd_per_month is not None

    @property
    def storage(self) -> Mapping[str, int | None]:
        """Storage limits by the names in :data:`STORED`; None is unlimited."""
        return {name: getattr(self, f"max_{name}") for name in STORED}


UNLIMITED: Final = Quota()


@dataclass(frozen=True, slots=True, kw_only=True)
class RateState:
    """The state of a tenant's rate limit, as sent in response headers."""

    limit: int
    """Maximum number of runs per minute."""
    remaining: int
    """Number of runs that may be sent immediately."""
    reset_seconds: int
    """Seconds until another run may be sent. If one may be sent now, seconds until the full
    allowance is available."""


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


def _plainly(amount: Decimal | int) -> str:
    return f"{Decimal(amount).normalize():f}"


class QuotaExceededError(Exception):
    """A request would exceed a quota of the tenant."""

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
            f"{dimension}: {_plainly(used)} used, {_plainly(reserved)} reserved, "
            f"{_plainly(requested)} requested, limit {_plainly(limit)}"
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
        """Used, reserved and requested amounts, and the limit, by name."""
        names = ("used", "reserved", "requested", "limit")
        return {name: getattr(self, name) for name in names}
