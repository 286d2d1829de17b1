"""Accounts: limits above runs, such as the quota of a tenant and the budgets of a key.

Each call of a run reserves its maximum in the accounts of the run before it is sent, and settles it
when its result is stored. The store of the runs decides, because processes share an account.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any, Final, Self

from caseworker.core.budget.budget import Budget, Dimension, money
from caseworker.core.budget.stops import rfc3339
from caseworker.core.budget.usage import BudgetExceededError, Charge, ResourceUsage

TENANT: Final = "tenant"
"""Name of the account whose limit is the quota of the tenant."""
KEY: Final = "key"
"""First part of the name of an account with the budgets of a standing key per day and month."""
SESSION: Final = "session"
"""First part of the name of an account with the budget of one session of a standing key."""
TOTAL: Final = "total"
"""Period of a limit that is never renewed."""

COUNTED: Final = (
    Dimension.COST_USD,
    Dimension.TOKENS,
    Dimension.LLM_CALLS,
    Dimension.API_CALLS,
)
"""The dimensions that accounts can limit."""

_TITLES: Final = {
    TENANT: "quota of the tenant",
    KEY: "budget of the key",
    SESSION: "budget of the session",
}


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
    llm_calls: int = 0
    """1 for the first attempt of a model call, otherwise 0."""
    api_calls: int = 0

    @classmethod
    def of_charge(cls, node_id: str, attempt: int, charge: Charge) -> Self:
        """Return the hold of a charge, or its settlement; ``attempt`` is a number from 1."""
        tokens, llm_calls, api_calls = (int(charge.get(each, 0)) for each in COUNTED[1:])
        return cls(
            node_id=node_id,
            attempt=attempt,
            cost_usd=money(charge.get(Dimension.COST_USD, 0)),
            tokens=tokens,
            llm_calls=llm_calls,
            api_calls=api_calls,
        )

    @property
    def key(self) -> HoldKey:
        """What identifies the hold within its run."""
        return self.node_id, self.attempt

    def amount(self, dimension: Dimension) -> Decimal:
        """Return the reserved amount of a dimension."""
        return Decimal(getattr(self, dimension.value))


@dataclass(frozen=True, slots=True, kw_only=True)
class AccountLimit:
    """A limit of an account in one period, with the amounts when a call was reserved in it."""

    account: str
    period: str
    """``day`` or ``month``, in UTC, or ``total``."""
    until: date | None
    """First day after the period, in UTC; None if the limit is never renewed."""
    dimension: Dimension
    used: Decimal
    reserved: Decimal
    limit: Decimal

    @property
    def scope(self) -> str:
        """Name of the limit in the stop of a run, such as ``quota of the tenant, day``."""
        return self.owner if self.period == TOTAL else f"{self.owner}, {self.period}"

    @property
    def owner(self) -> str:
        """Name of the account in messages, such as ``budget of the key``."""
        return _TITLES.get(self.kind, self.account)

    @property
    def kind(self) -> str:
        """First part of the account's name, such as ``key``."""
        return self.account.partition(":")[0]

    @property
    def resets_at(self) -> datetime | None:
        """Time at which the next period begins; None if there is none."""
        return None if self.until is None else datetime.combine(self.until, time(), UTC)

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
            owner=self.kind,
        )
        is_cost = self.dimension is Dimension.COST_USD
        limits: dict[str, Any] = {self.dimension.field: self.limit if is_cost else int(self.limit)}
        end = "" if self.resets_at is None else f"; the period ends at {rfc3339(self.resets_at)}"
        return BudgetExceededError(
            usage,
            Budget(**limits),
            f"{described} (scope {self.scope}{end})",
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
