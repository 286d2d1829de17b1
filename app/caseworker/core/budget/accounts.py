"""Accounts: limits above runs, such as the quota of a tenant.

Each call of a run reserves its maximum in the accounts of the run before it is sent, and settles it
when its result is stored. The store of the runs decides, because processes share an account.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Final

from caseworker.core.budget.budget import Budget, Dimension
from caseworker.core.budget.stops import rfc3339
from caseworker.core.budget.usage import BudgetExceededError, Charge, ResourceUsage

TENANT: Final = "tenant"
"""Name of the account whose limit is the quota of the tenant."""

_TITLES: Final = {TENANT: "quota of the tenant"}


HoldKey = tuple[str, int]
"""Identifies a hold within its run: the ID of the CallNode and the number of the attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """What one attempt at a call reserves in accounts or, once it is settled, has used."""

    node_id: str
    attempt: int
    """Number of the attempt, from 1."""
    cost_usd: Decimal
    tokens: int

    @property
    def key(self) -> HoldKey:
        """What identifies the hold within its run."""
        return self.node_id, self.attempt

    def amount(self, dimension: Dimension) -> Decimal:
        """Return the reserved amount of a dimension."""
        return self.cost_usd if dimension is Dimension.COST_USD else Decimal(self.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountLimit:
    """A limit of an account in one period, with the amounts when a call was reserved in it."""

    account: str
    period: str
    """``day`` or ``month``, in UTC."""
    until: date
    """First day after the period, in UTC."""
    dimension: Dimension
    used: Decimal
    reserved: Decimal
    limit: Decimal

    @property
    def scope(self) -> str:
        """Name of the limit in the stop of a run, such as ``quota of the tenant, day``."""
        return f"{_TITLES.get(self.account, self.account)}, {self.period}"

    @property
    def resets_at(self) -> datetime:
        """Time at which the next period begins."""
        return datetime.combine(self.until, time(), UTC)

    def allows(self, charge: Charge, *, include_reserved: bool) -> bool:
        """Return whether a charge fits on top of the used and, if set, the reserved amount."""
        claimed = self.used + (self.reserved if include_reserved else 0)
        return claimed + Decimal(charge.get(self.dimension, 0)) <= self.limit

    def exceeded_by(self, charge: Charge) -> BudgetExceededError:
        """Return the stop of a run whose next call does not fit into this limit."""
        usage = ResourceUsage()
        usage.amounts[self.dimension] = self.used
        requested = charge.get(self.dimension, 0)
        described = usage.describe(
            self.dimension,
            self.limit,
            reserved=self.reserved,
            requested=requested,
            owner=self.account,
        )
        if self.dimension is Dimension.COST_USD:
            budget = Budget(max_cost_usd=self.limit)
        else:
            budget = Budget(max_tokens=int(self.limit))
        return BudgetExceededError(
            usage,
            budget,
            f"{described} (scope {self.scope}; the period ends at {rfc3339(self.resets_at)})",
            dimension=self.dimension,
            scope=self.scope,
            reserved=self.reserved,
            requested=requested,
            resets_at=self.resets_at,
        )


@dataclass(frozen=True, slots=True)
class HoldAnswer:
    """Whether a hold was granted, and the limits of its accounts as they were before it."""

    granted: bool
    limits: Sequence[AccountLimit]
