"""Scopes and reservations: how parallel work is kept inside nested limits.

A scope is a budget with its usage, inside its parent's scope. Work is paid in two moves. *Before*
a charge it is reserved, in the scope and in all its ancestors or in none of them. *After* it, the
reservation is replaced by what was really used. What is reserved cannot be spent by anyone else,
so however many steps work in parallel, a limit of N lets exactly N through. What cannot be known
before (tokens, cost) may overshoot once; from then on every reservation is refused, whatever it
asks for.

:meth:`Scope.ask` waits in line where a charge does not fit only because of what others have
reserved (``waiting.py``); :meth:`Scope.reserve` and :meth:`Scope.charge` refuse instead. Any thread
may call them: one lock guards the scopes of a tree.
"""

from collections.abc import Callable, Mapping
from typing import Any

from caseworker.control.account import WARNING_SHARES, Account
from caseworker.control.budget import UNLIMITED, Amount, Budget, Dimension
from caseworker.control.usage import (
    BudgetExceededError,
    Charge,
    CheckedCharge,
    ResourceUsage,
    checked,
)
from caseworker.control.waiting import HOLDER, Holder, Reservation, Room, Waiter, WaitingLine

__all__ = ["ESTIMATED_OF", "HOLDER", "Holder", "Reservation", "Room", "Scope", "Waiter", "Warn"]

Warn = Callable[["Scope", Dimension, float], None]
"""Called once when a scope's dimension has reached a share (0.7, 0.9) of its limit."""


class Scope(Account):
    """A budget, what was spent of it, and what is reserved."""

    def __init__(
        self,
        name: str,
        budget: Budget | None = None,
        *,
        parent: "Scope | None" = None,
        usage: ResourceUsage | None = None,
        warn: Warn | None = None,
        requires_prices: bool = True,
    ) -> None:
        """Open a scope.

        ``requires_prices`` says whether its limit of cost refuses calls whose price is not known.
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
        self.line: WaitingLine = WaitingLine(self.usage.lock) if parent is None else parent.line
        """Those who wait for room here and in the scopes around and inside this one."""
        self.usage.lock = self.line.lock

    def child(self, name: str, budget: Budget | None) -> "Scope":
        """Open a scope inside this one; everything it spends counts here as well."""
        return Scope(f"{self.name}/{name}", budget, parent=self, usage=self.usage.child())

    def lineage(self) -> tuple["Scope", ...]:
        """Return this scope and its ancestors, innermost first."""
        return (self, *self._ancestors)  # kept, it would keep the scope alive

    def tightest_limits(self) -> dict[Dimension, Amount]:
        """Return the tightest limit of every dimension but time, here and in every ancestor."""
        tightest: dict[Dimension, Amount] = {}
        for view in self.lineage():
            for dimension, limit in view.limits.items():
                tightest[dimension] = min(limit, tightest.get(dimension, limit))
        return tightest

    def reserve(self, charge: Charge) -> Reservation:
        """Hold ``charge`` here and in every ancestor, or nowhere, without waiting.

        Raises:
            BudgetExceededError: a limit would be passed; names the scope and the dimension.
            ValueError: an amount is negative or not finite.
        """
        return self.line.reserve(self.lineage(), checked(charge))

    def ask(
        self,
        charge: Charge,
        wanted: Callable[[Room], Charge] | None = None,
        *,
        tracked: bool = True,
    ) -> Reservation | Waiter:
        """Hold ``charge`` here and in every ancestor, or wait in line until others have left room.

        ``wanted`` returns more than ``charge`` to be held instead, as much as there is room for
        when it is asked. A ``tracked`` reservation ends with the step that makes it.

        Raises:
            BudgetExceededError: it does not fit even if nothing but the caller's own reservations
                is held; names the scope and the dimension.
            ValueError: an amount is negative or not finite.
        """
        return self.line.ask(self.lineage(), checked(charge), wanted, tracked=tracked)

    def release_left(self, made_by: Callable[[Any], bool]) -> None:
        """Give back what a step has reserved and left unsettled."""
        for reservation, holder in list(self.line.tracked.items()):
            if made_by(holder):
                reservation.release()

    def charge(self, charge: Charge) -> None:
        """Reserve and settle in one move what is known beforehand; raises as :meth:`reserve`."""
        if type(charge) is not CheckedCharge:
            charge = checked(charge)
        # Written out, as every step pays it: calls and ``with`` are dear on CPython 3.11.
        lock = self.usage.lock
        lock.acquire()
        try:
            lineage = (self, *self._ancestors)
            for scope in lineage:
                limits, usage, held = scope.limits, scope.usage, scope.held
                if not limits:
                    continue
                used = usage.amounts
                fits = usage.checked_by is scope.mark
                for dimension, asked in charge.items():
                    if (limit := limits.get(dimension)) is not None:
                        taken = used.get(dimension, 0) + held.get(dimension, 0)
                        fits = fits and taken + asked <= limit
                if not fits and (refused := scope.refusal(charge, held)) is not None:
                    raise refused
            for scope in lineage:
                usage = scope.usage  # as ``add`` does, but what was allowed leaves it within limits
                if usage.checked_by is not scope.mark:
                    usage.checked_by = None
                used = usage.amounts
                for dimension, asked in charge.items():
                    used[dimension] = used.get(dimension, 0) + asked
                if scope._warn is not None:
                    scope.warn_of(charge)
        finally:
            lock.release()

    def add(self, charge: Charge) -> None:
        """Count what was spent already, whatever the limits say (late costs, replayed runs)."""
        for scope in self.lineage():
            scope.usage.add(charge)
            scope.warn_of(charge)

    def restore(self, charge: Charge) -> None:
        """Count, in this scope alone, what an earlier execution of its run has spent in it.

        Of what was reached then nobody is warned again.
        """
        self.usage.add(charge)
        for dimension, limit in self.limits.items():
            reached = float(self.usage.of(dimension)) / float(limit) if limit else 0.0
            shares = (share for share in WARNING_SHARES if reached >= share)
            self._warned.update((dimension, share) for share in shares)

    def require_something_left(self) -> None:
        """Raise BudgetExceededError where any limit, here or above, is used up."""
        for scope in self.lineage():
            tripped = scope.usage.tripped_by(scope.budget)
            if tripped is not None:
                raise scope.stop(tripped[0])

    def limits_of(self, dimension: Dimension) -> bool:
        """Return whether this scope or an ancestor limits a dimension."""
        return any(dimension in scope.limits for scope in self.lineage())

    def requires_prices(self) -> bool:
        """Return whether a limit of cost, here or above, refuses calls of unknown price."""
        limited = (scope for scope in self.lineage() if Dimension.COST_USD in scope.limits)
        return any(scope._requires_prices for scope in limited)

    def remaining(self, dimension: Dimension) -> Amount | None:
        """Return what can still be reserved in a dimension, here and above; None is unlimited."""
        rests = (scope.room(dimension) for scope in self.lineage())
        least = min((rest for rest in rests if rest is not None), default=None)
        return None if least is None else max(0, least)

    def reserved(self, dimension: Dimension) -> Amount:
        """Return what is held in a dimension for work in flight."""
        return self.held.get(dimension, 0)

    def to_dict(self) -> dict[str, int | float | None]:
        """Return what was spent as JSON numbers; what is still in flight counts as estimated."""
        spent = self.usage.fresh()
        with self.line.lock:
            spent.add(self.usage.amounts)
            spent.add(as_estimated(self.held))
        seconds = round(self.usage.time_elapsed_seconds, 3)
        return spent.to_dict() | {Dimension.SECONDS.value: seconds}

    def remaining_seconds(self) -> float | None:
        """Return the time that is left before a limit of seconds, here or above, interrupts."""
        limits = ((scope.budget.max_time_seconds, scope.usage) for scope in self.lineage())
        left = (most - used.time_elapsed_seconds for most, used in limits if most is not None)
        return min(left, default=None)

    def out_of_own_time(self) -> BudgetExceededError:
        """Return the stop that says that this scope's own limit of seconds is used up."""
        return self.stop(Dimension.SECONDS)

    def shares_to_warn_of(self) -> tuple[float, ...]:
        """Return the shares of a limit at which a warning is wanted."""
        return WARNING_SHARES if self._warn is not None else ()

    def warn_of_time(self, share: float) -> None:
        """Warn, once, that a share of this scope's seconds has passed."""
        if self._warn is not None and (Dimension.SECONDS, share) not in self._warned:
            self._warned.add((Dimension.SECONDS, share))
            self._warn(self, Dimension.SECONDS, share)


def as_estimated(charge: Charge) -> Charge:
    """Return a charge with the parts that say that its tokens and its cost are estimates."""
    marks = {
        ESTIMATED_OF[d]: amount for d, amount in charge.items() if d in ESTIMATED_OF and amount
    }
    return {**charge, **marks}


ESTIMATED_OF: Mapping[Dimension, Dimension] = {
    Dimension.TOKENS: Dimension.TOKENS_ESTIMATED,
    Dimension.COST_USD: Dimension.COST_USD_ESTIMATED,
}
"""What says of a dimension which part of it is an estimate."""
