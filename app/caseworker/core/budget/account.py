"""The account of one budget scope: its limits, its usage and the amounts it holds in reserve.

All methods must be called under the lock that all scopes of one tree share.
"""

from collections.abc import Callable, Mapping
from typing import Any

from caseworker.core.budget.budget import Amount, Budget, Dimension
from caseworker.core.budget.usage import BudgetExceededError, Charge, ResourceUsage

WARNING_SHARES = (0.7, 0.9)


class Account:
    """Keeps the limits of one scope, its usage, and the amounts held for work in flight."""

    def __init__(
        self,
        name: str,
        budget: Budget,
        usage: ResourceUsage,
        warn: "Callable[[Any, Dimension, float], None] | None",
    ) -> None:
        self.name = name
        self.budget = budget
        self.usage = usage
        self.limits = budget.limits()
        """Upper limits by dimension, without the time limit, because time cannot be reserved."""
        self.limits.pop(Dimension.SECONDS, None)
        self.held: dict[Dimension, Amount] = {}
        self.mark = object()
        """Marker object: ``usage.checked_by`` is set to it once the usage was found to be within
        the limits."""
        self._warn = warn
        self._warned: set[tuple[Dimension, float]] = set()

    def refusal(
        self, charge: Charge, held: Mapping[Dimension, Amount]
    ) -> BudgetExceededError | None:
        """Return the error if a charge would exceed a limit, else None.

        The usage so far and the amounts in ``held`` count as well.
        """
        if self.usage.checked_by is not self.mark:
            overshot = self._overshot(charge)
            if overshot is not None:
                return overshot
        used, limits = self.usage.amounts, self.limits
        for dimension, asked in charge.items():
            limit = limits.get(dimension)
            if limit is None or not asked:
                continue
            if used.get(dimension, 0) + held.get(dimension, 0) + asked > limit:
                return self.stop(dimension, asked)
        return None

    def room(self, dimension: Dimension, claimed: Amount = 0) -> Amount | None:
        """Return how much of a dimension can still be reserved; None means unlimited.

        ``claimed`` is the amount that earlier requests in the queue wait for; it is not free
        either.
        """
        limit = self.limits.get(dimension)
        if limit is None:
            return None
        taken: Any = self.usage.amounts.get(dimension, 0)
        return limit - (taken + self.held.get(dimension, 0) + claimed)  # type: ignore[no-any-return]

    def hold(self, charge: Charge) -> None:
        """Reserve a charge for work in flight; :meth:`give_back` releases it."""
        held = self.held
        for dimension, amount in charge.items():
            held[dimension] = held.get(dimension, 0) + amount  # type: ignore[operator]

    def give_back(self, charge: Charge) -> None:
        """Release a charge that :meth:`hold` reserved."""
        for dimension, amount in charge.items():
            self.held[dimension] -= amount  # type: ignore[operator]

    def stop(
        self,
        dimension: Dimension,
        requested: Amount | None = None,
        *,
        kept_for_answer: Amount = 0,
    ) -> BudgetExceededError:
        """Return the error for an exceeded limit of this scope, with its current amounts.

        ``requested`` is the refused amount; None if nothing was requested. ``kept_for_answer`` is
        the amount that an agent reserves for its final answer.
        """
        limit, reserved = self.budget.limits()[dimension], self.held.get(dimension, 0)
        if requested is None:
            described = self.usage.describe(dimension, limit)
        else:
            described = self.usage.describe(
                dimension,
                limit,
                reserved=kept_for_answer or reserved,
                requested=requested,
                for_answer=bool(kept_for_answer),
            )
        return BudgetExceededError(
            self.usage,
            self.budget,
            f"{described} (scope {self.name})",
            dimension=dimension,
            scope=self.name,
            reserved=None if requested is None else kept_for_answer or reserved,
            requested=requested,
        )

    def warn_of(self, charge: Charge) -> None:
        """Warn once for each threshold that the usage of a dimension in ``charge`` has reached.

        A threshold is a fraction of the limit, as in ``WARNING_SHARES``.
        """
        if self._warn is None or not self.limits:
            return
        for dimension in charge:
            limit = self.limits.get(dimension)
            if not limit:
                continue
            for share in WARNING_SHARES:
                reached = float(self.usage.of(dimension)) >= share * float(limit)
                if reached and (dimension, share) not in self._warned:
                    self._warned.add((dimension, share))
                    self._warn(self, dimension, share)

    def _overshot(self, charge: Charge) -> BudgetExceededError | None:
        """Return the error if the usage already exceeds a limit, even in a dimension not charged.

        Tokens and cost can exceed their limit, because their amounts are known only afterwards.
        """
        usage = self.usage
        # Set before the check: a concurrent write from a node's thread resets it to None.
        usage.checked_by = self.mark
        used = usage.amounts
        for dimension, limit in self.limits.items():
            if used.get(dimension, 0) > limit:
                usage.checked_by = None
                return self.stop(dimension, charge.get(dimension, 0))
        return None
