"""Budget scopes and reservations, which keep parallel work within nested limits.

A scope has a budget and counts the usage within it; scopes are nested. Spending has two phases.
Before the work, an amount is reserved in the scope and in all its ancestors, or in none of them.
After the work, the actual usage replaces the reservation. No other work can spend a reserved
amount, so a limit of N allows exactly N, however many steps run in parallel. Some amounts (tokens,
cost) are unknown in advance. They may exceed their limit once; after that, every reservation is
refused.

If a charge does not fit only because of other reservations, :meth:`Scope.ask` queues
(``reservations.py``), while :meth:`Scope.reserve` and :meth:`Scope.charge` refuse it. All three are
thread-safe: one lock guards all scopes of a tree.
"""

from collections.abc import Callable
from typing import Any

from caseworker.core.budget.budget import ESTIMATED_OF, UNLIMITED, Amount, Budget, Dimension
from caseworker.core.budget.reservations import (
    HOLDER,
    WARNING_SHARES,
    Account,
    FreeAmounts,
    Holder,
    Reservation,
    ReservationQueue,
    Waiter,
    free_amounts,
)
from caseworker.core.budget.usage import (
    BudgetExceededError,
    Charge,
    CheckedCharge,
    ResourceUsage,
    checked,
)

__all__ = ["HOLDER", "FreeAmounts", "Holder", "Reservation", "Scope", "Waiter", "Warn"]

Warn = Callable[["Scope", Dimension, float], None]
"""Called with the scope, the dimension and the warning threshold (0.7 or 0.9 of the limit) when
usage first reaches the threshold."""


class Scope(Account):
    """A budget together with its usage and reservations, nested in an optional parent scope."""

    def __init__(
        self,
        name: str,
        budget: Budget | None = None,
        *,
        parent: "Scope | None" = None,
        usage: ResourceUsage | None = None,
        warn: Warn | None = None,
        requires_prices: bool = True,
        limits_spending: bool = True,
        in_account: bool = False,
    ) -> None:
        """Open a scope.

        ``requires_prices`` is whether a cost limit on this scope refuses calls whose price is
        unknown. ``limits_spending`` is whether its limits on cost and tokens were chosen for it;
        False if they are only the service's ceilings. ``in_account`` is whether an account above
        the scope limits its cost.
        """
        super().__init__(
            name,
            budget or UNLIMITED,
            usage or ResourceUsage(),
            warn or (parent._warn if parent else None),
        )
        self.parent = parent
        self._ancestors: tuple[Scope, ...] = () if parent is None else parent.lineage()
        self._requires_prices = requires_prices
        self._limits_spending = limits_spending
        self._in_account = in_account
        self.queue: ReservationQueue = (
            ReservationQueue(self.usage.lock) if parent is None else parent.queue
        )
        """The queue of pending reservations, shared by all scopes of the tree."""
        self.usage.lock = self.queue.lock

    def child(self, name: str, budget: Budget | None) -> "Scope":
        """Open a child scope; everything that it spends also counts in this scope."""
        return Scope(f"{self.name}/{name}", budget, parent=self, usage=self.usage.child())

    def lineage(self) -> tuple["Scope", ...]:
        """Return this scope and its ancestors, innermost first."""
        return (self, *self._ancestors)  # not cached: a reference cycle would keep the scope alive

    def tightest_limits(self) -> dict[Dimension, Amount]:
        """Return the lowest limits of this scope and its ancestors, by dimension, without time."""
        tightest: dict[Dimension, Amount] = {}
        for view in self.lineage():
            for dimension, limit in view.limits.items():
                tightest[dimension] = min(limit, tightest.get(dimension, limit))
        return tightest

    def reserve(self, charge: Charge) -> Reservation:
        """Reserve ``charge`` in this scope and all ancestors without waiting, or in none of them.

        Raises:
            BudgetExceededError: a limit would be exceeded; names the scope and the dimension.
            ValueError: an amount is negative or not finite.
        """
        return self.queue.reserve(self.lineage(), checked(charge))

    def ask(
        self,
        charge: Charge,
        preferred: Callable[[FreeAmounts], Charge] | None = None,
        *,
        tracked: bool = True,
    ) -> Reservation | Waiter:
        """Reserve ``charge`` in this scope and all ancestors, or enqueue a request.

        Once the capacity is free, ``preferred`` is called with the free capacity by dimension. It
        returns the charge to reserve, which may be larger than ``charge``. A ``tracked``
        reservation is released at the latest when the step that made it ends.

        Raises:
            BudgetExceededError: the charge does not fit even if only the caller's own reservations
                are held; names the scope and the dimension.
            ValueError: an amount is negative or not finite.
        """
        if type(charge) is not CheckedCharge:
            charge = checked(charge)
        return self.queue.ask(self.lineage(), charge, preferred, tracked=tracked)

    def reserve_now(self, charge_for: Callable[[FreeAmounts], Charge | None]) -> Reservation | None:
        """Reserve the charge that ``charge_for`` returns for the free capacity, without waiting.

        Returns None if ``charge_for`` does, or if the charge does not fit.
        """
        return self.queue.reserve_now(self.lineage(), charge_for)

    def release_left(self, made_by: Callable[[Any], bool]) -> None:
        """Release the unsettled reservations of each step whose path ``made_by`` accepts."""
        for reservation, holder in list(self.queue.tracked.items()):
            if made_by(holder):
                reservation.release()

    def charge(self, charge: Charge) -> None:
        """Charge an exact amount: reserve and settle it at once.

        Raises:
            BudgetExceededError: a limit would be exceeded; names the scope and the dimension.
            ValueError: an amount is negative or not finite.
        """
        if type(charge) is not CheckedCharge:
            charge = checked(charge)
        # Inlined because every step runs it: calls and ``with`` are expensive on CPython 3.11.
        lock = self.usage.lock
        lock.acquire()
        try:
            lineage = (self, *self._ancestors)
            for scope in lineage:
                limits, usage, holds = scope.limits, scope.usage, scope.reserved_amounts
                if not limits:
                    continue
                used = usage.amounts
                fits = usage.checked_by is scope.mark
                for dimension, amount in charge.items():
                    if (limit := limits.get(dimension)) is not None:
                        occupied = used.get(dimension, 0) + holds.get(dimension, 0)
                        fits = fits and occupied + amount <= limit
                if not fits and (refused := scope.refusal(charge, holds)) is not None:
                    raise refused
            for scope in lineage:
                usage = scope.usage
                # Unlike ``add``, keep the scope's own mark: an allowed charge stays in its limits.
                if usage.checked_by is not scope.mark:
                    usage.checked_by = None
                used = usage.amounts
                for dimension, amount in charge.items():
                    used[dimension] = used.get(dimension, 0) + amount
                if scope._warn is not None:
                    scope.warn_of(charge)
        finally:
            lock.release()

    def add(self, charge: Charge) -> None:
        """Count an amount that was already spent (such as a late cost), without checking limits."""
        for scope in self.lineage():
            scope.usage.add(charge)
            scope.warn_of(charge)

    def restore(self, charge: Charge) -> None:
        """Add the amounts that an earlier execution of the run spent in this scope.

        Ancestors are not charged. Warnings for thresholds that were already reached are not
        repeated.
        """
        self.usage.add(charge)
        for dimension, limit in self.limits.items():
            reached = float(self.usage.of(dimension)) / float(limit) if limit else 0.0
            shares = (share for share in WARNING_SHARES if reached >= share)
            self._warned += tuple((dimension, share) for share in shares)

    def require_something_left(self) -> None:
        """Check that neither this scope nor an ancestor has exhausted a limit.

        Raises:
            BudgetExceededError: a limit is exhausted.
        """
        for scope in self.lineage():
            tripped = scope.usage.tripped_by(scope.budget)
            if tripped is not None:
                raise scope.stop(tripped[0])

    def requires_prices(self) -> bool:
        """Return whether a cost limit here or above forbids calls at an unknown price."""
        limited = (
            scope
            for scope in self.lineage()
            if scope._in_account or Dimension.COST_USD in scope.limits
        )
        return any(scope._requires_prices for scope in limited)

    def limits_spending(self) -> bool:
        """Return whether cost or tokens are limited here or in an ancestor, ceilings apart."""
        spending = {Dimension.COST_USD, Dimension.TOKENS}
        return any(
            scope._in_account or (scope._limits_spending and not spending.isdisjoint(scope.limits))
            for scope in self.lineage()
        )

    def remaining(self, dimension: Dimension) -> Amount | None:
        """Return how much of a dimension can still be reserved, here and in all ancestors.

        None means unlimited. The result is never negative.
        """
        capacity = free_amounts(self.lineage()).get(dimension)
        return None if capacity is None else max(0, capacity)

    def reserved(self, dimension: Dimension) -> Amount:
        """Return how much of a dimension is reserved for work in flight."""
        return self.reserved_amounts.get(dimension, 0)

    def to_dict(self) -> dict[str, int | float | None]:
        """Return the usage as JSON numbers.

        Amounts reserved for work in flight are included as estimates.
        """
        spent = self.usage.fresh()
        with self.queue.lock:
            spent.add(self.usage.amounts)
            spent.add(as_estimated(self.reserved_amounts))
        seconds = round(self.usage.time_elapsed_seconds, 3)
        return spent.to_dict() | {Dimension.SECONDS.value: seconds}

    def remaining_seconds(self) -> float | None:
        """Return the seconds until the earliest time limit of this scope and its ancestors.

        None means no time limit. The result is negative once a limit has passed.
        """
        limits = ((scope.budget.max_time_seconds, scope.usage) for scope in self.lineage())
        remaining = (
            limit - used.time_elapsed_seconds for limit, used in limits if limit is not None
        )
        return min(remaining, default=None)

    def time_limit_error(self) -> BudgetExceededError:
        """Return the error to raise when this scope's own time limit has passed."""
        return self.stop(Dimension.SECONDS)

    def shares_to_warn_of(self) -> tuple[float, ...]:
        """Return the warning thresholds as fractions of a limit; empty if no callback is set."""
        return WARNING_SHARES if self._warn is not None else ()

    def warn_of_time(self, share: float) -> None:
        """Warn, at most once, that the fraction ``share`` of this scope's time limit has passed."""
        if self._warn is not None and (Dimension.SECONDS, share) not in self._warned:
            self._warned += ((Dimension.SECONDS, share),)
            self._warn(self, Dimension.SECONDS, share)


def as_estimated(charge: Charge) -> Charge:
    """Return ``charge`` with its tokens and cost also counted in the estimated dimensions."""
    marks = {
        ESTIMATED_OF[d]: amount for d, amount in charge.items() if d in ESTIMATED_OF and amount
    }
    return {**charge, **marks}
