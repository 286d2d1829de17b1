"""Scopes and reservations: how parallel work is kept inside nested limits.

A scope is a budget with its usage, inside its parent's scope. Work is paid in two moves. *Before*
a charge it is reserved, in the scope and in all its ancestors or in none of them, and refused
where used + reserved + asked would pass a limit. *After* it, the reservation is replaced by what
was really used. What is reserved cannot be spent by anyone else, so however many steps work in
parallel, a limit of N lets exactly N through. What cannot be known before (tokens, cost) may
overshoot once; from then on every reservation is refused, whatever it asks for.

All of this happens on one event loop, between awaits; there is no lock and none is needed.
"""

from collections.abc import Callable

from app.control.budget import Amount, Budget, Dimension
from app.control.usage import NOTHING, BudgetExceededError, Charge, ResourceUsage

Warn = Callable[["Scope", Dimension, float], None]
"""Called once when a scope's dimension has reached a share (0.7, 0.9) of its limit."""

WARNING_SHARES = (0.7, 0.9)


class Scope:
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
        self.name = name
        self.budget = budget or Budget()
        self.usage = usage or ResourceUsage()
        self._ancestors: tuple[Scope, ...] = () if parent is None else parent.lineage()
        self._limits = self.budget.limits()
        self._limits.pop(Dimension.SECONDS, None)  # time passes by itself; see remaining_seconds
        self._requires_prices = requires_prices
        self._mark = object()
        """Left on the usage when it was found within the limits."""
        self._held: dict[Dimension, Amount] = {}
        self._warn: Warn | None = warn or (parent._warn if parent else None)
        self._warned: set[tuple[Dimension, float]] = set()

    def child(self, name: str, budget: Budget | None) -> "Scope":
        """Open a scope inside this one; everything it spends counts here as well."""
        return Scope(f"{self.name}/{name}", budget, parent=self, usage=self.usage.child())

    def lineage(self) -> tuple["Scope", ...]:
        """Return this scope and its ancestors, innermost first."""
        return (self, *self._ancestors)

    def reserve(self, charge: Charge) -> "Reservation":
        """Hold ``charge`` here and in every ancestor, or nowhere.

        Raises:
            BudgetExceededError: a limit would be passed; names the scope and the dimension.
        """
        lineage = self._with_room(charge)
        for scope in lineage:
            held = scope._held
            for dimension, amount in charge.items():
                held[dimension] = held.get(dimension, 0) + amount  # type: ignore[operator]
        return Reservation(lineage, charge)

    def charge(self, charge: Charge) -> None:
        """Reserve and settle in one move what is known beforehand; raises as :meth:`reserve`."""
        for scope in self._with_room(charge):
            usage = scope.usage  # as ``add`` does, but what was allowed leaves it within limits
            if usage.checked_by is not scope._mark:
                usage.checked_by = None
            used = usage.amounts
            for dimension, amount in charge.items():
                used[dimension] = used.get(dimension, 0) + amount
            if scope._warn is not None:
                scope._warn_of(charge)

    def add(self, charge: Charge) -> None:
        """Count what was spent already, whatever the limits say (late costs, replayed runs)."""
        for scope in self.lineage():
            scope.usage.add(charge)
            scope._warn_of(charge)

    def restore(self, charge: Charge) -> None:
        """Count, in this scope alone, what an earlier execution of its run has spent in it.

        Of what was reached then nobody is warned again.
        """
        self.usage.add(charge)
        for dimension, limit in self._limits.items():
            reached = float(self.usage.of(dimension)) / float(limit) if limit else 0.0
            shares = (share for share in WARNING_SHARES if reached >= share)
            self._warned.update((dimension, share) for share in shares)

    def require_something_left(self) -> None:
        """Raise BudgetExceededError where any limit, here or above, is used up."""
        for scope in self.lineage():
            tripped = scope.usage.tripped_by(scope.budget)
            if tripped is not None:
                raise scope._stop(*tripped)

    def requires_prices(self) -> bool:
        """Return whether a limit of cost, here or above, refuses calls of unknown price."""
        limited = (scope for scope in self.lineage() if Dimension.COST_USD in scope._limits)
        return any(scope._requires_prices for scope in limited)

    def remaining(self, dimension: Dimension) -> Amount | None:
        """Return what can still be reserved in a dimension, here and above; None is unlimited."""
        rests = [
            scope._limits[dimension]  # type: ignore[operator]
            - scope.usage.of(dimension)
            - scope._held.get(dimension, 0)
            for scope in self.lineage()
            if dimension in scope._limits
        ]
        return max(0, min(rests)) if rests else None

    def reserved(self, dimension: Dimension) -> Amount:
        """Return what is held in a dimension for work in flight."""
        return self._held.get(dimension, 0)

    def to_dict(self) -> dict[str, int | float]:
        """Return what was spent as JSON numbers; what is still in flight counts as reserved."""
        spent = self.usage.fresh()
        spent.add(self.usage.amounts)
        spent.add(self._held)
        seconds = round(self.usage.time_elapsed_seconds, 3)
        return spent.to_dict() | {Dimension.SECONDS.value: seconds}

    def remaining_seconds(self) -> float | None:
        """Return the time that is left before a limit of seconds, here or above, interrupts."""
        limits = ((scope.budget.max_time_seconds, scope.usage) for scope in self.lineage())
        left = (most - used.time_elapsed_seconds for most, used in limits if most is not None)
        return min(left, default=None)

    def out_of_own_time(self) -> BudgetExceededError:
        """Return the stop that says that this scope's own limit of seconds is used up."""
        return self._stop(Dimension.SECONDS, self.budget.limits()[Dimension.SECONDS])

    def shares_to_warn_of(self) -> tuple[float, ...]:
        """Return the shares of a limit at which a warning is wanted."""
        return WARNING_SHARES if self._warn is not None else ()

    def warn_of_time(self, share: float) -> None:
        """Warn, once, that a share of this scope's seconds has passed."""
        if self._warn is not None and (Dimension.SECONDS, share) not in self._warned:
            self._warned.add((Dimension.SECONDS, share))
            self._warn(self, Dimension.SECONDS, share)

    def _with_room(self, charge: Charge) -> tuple["Scope", ...]:
        """Return this scope and its ancestors, in all of which there is room for a charge."""
        lineage = (self, *self._ancestors)
        for scope in lineage:
            if scope._limits:
                scope._require_room(charge)
        return lineage

    def _require_room(self, charge: Charge) -> None:
        used, held, limits = self.usage.amounts, self._held, self._limits
        if self.usage.checked_by is not self._mark:
            self._refuse_overshot()
        for dimension, asked in charge.items():
            limit = limits.get(dimension)
            if limit is None or not asked:
                continue
            if used.get(dimension, 0) + held.get(dimension, 0) + asked > limit:
                raise self._stop(dimension, limit)

    def _refuse_overshot(self) -> None:
        """Refuse where more than a limit was spent, which no charge comes to by itself.

        The mark comes first: what a node writes meanwhile, in a thread, wipes it away again.
        """
        usage = self.usage
        usage.checked_by = self._mark
        used = usage.amounts
        for dimension, limit in self._limits.items():
            if used.get(dimension, 0) > limit:
                usage.checked_by = None
                raise self._stop(dimension, limit)

    def _stop(self, dimension: Dimension, limit: Amount) -> BudgetExceededError:
        reason = f"{self.usage.describe(dimension, limit)} (scope {self.name})"
        return BudgetExceededError(
            self.usage, self.budget, reason, dimension=dimension, scope=self.name
        )

    def _warn_of(self, charge: Charge) -> None:
        if self._warn is None or not self._limits:
            return
        for dimension in charge:
            limit = self._limits.get(dimension)
            if not limit:
                continue
            for share in WARNING_SHARES:
                reached = float(self.usage.of(dimension)) >= share * float(limit)
                if reached and (dimension, share) not in self._warned:
                    self._warned.add((dimension, share))
                    self._warn(self, dimension, share)


class Reservation:
    """What one piece of work may still spend; settle it exactly once."""

    __slots__ = ("_scopes", "charge")

    def __init__(self, scopes: tuple[Scope, ...], charge: Charge) -> None:
        self._scopes = scopes
        self.charge = charge
        """What is held."""

    def settle(self, used: Charge = NOTHING) -> None:
        """Give the hold back and count what was really used; a second time changes nothing."""
        scopes, self._scopes = self._scopes, ()
        for scope in scopes:
            for dimension, amount in self.charge.items():
                scope._held[dimension] -= amount  # type: ignore[operator]
            if used:
                scope.usage.add(used)
                scope._warn_of(used)
