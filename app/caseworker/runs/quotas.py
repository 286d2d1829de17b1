"""Tenant quotas: limits on concurrent runs, rate, cost and storage.

A quota is enforced by the statements that accept and claim runs, so it holds for any number of
processes. Its cost limits are those of an account in which each model call reserves its maximum
cost (:mod:`caseworker.core.budget.accounts`).

See docs/internals.md, "Accounts".
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Final

from caseworker.platform.caller import DEFAULT_TENANT

STORED: Final = ("stored_bytes", "definitions", "threads")
"""Names of the storage dimensions, as in :class:`QuotaUse`."""


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

    def for_tenant(self, tenant: str) -> "Quota":
        """Return this default quota for a tenant.

        The default tenant, used without API keys, has unlimited storage.
        """
        if tenant != DEFAULT_TENANT:
            return self
        return replace(self, max_stored_bytes=None, max_definitions=None, max_threads=None)

    @property
    def limits_cost(self) -> bool:
        """Whether each model call has to reserve its maximum cost."""
        return self.max_cost_usd_per_day is not None or self.max_cost_usd_per_month is not None

    @property
    def costs(self) -> Mapping[str, str | None]:
        """Cost limits in US dollars by period, as SQL functions take them; None is unlimited."""
        limits = {"day": self.max_cost_usd_per_day, "month": self.max_cost_usd_per_month}
        return {period: None if limit is None else str(limit) for period, limit in limits.items()}

    @property
    def storage(self) -> Mapping[str, int | None]:
        """Storage limits by the names in :data:`STORED`; None is unlimited."""
        return {name: getattr(self, f"max_{name}") for name in STORED}


UNLIMITED: Final = Quota()
