"""What was spent."""

import math
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from app.control.budget import Amount, Budget, Dimension, money
from app.control.stops import Stop, StopCause, StopKind

Charge = Mapping[Dimension, Amount]
"""Amounts by dimension; money as Decimal. What is not named is not charged."""

NOTHING: Charge = {}


class _Count:
    """An attribute of a usage that reads and writes a whole amount."""

    def __init__(self, dimension: Dimension) -> None:
        self._dimension = dimension

    def __get__(self, usage: "ResourceUsage", owner: object = None) -> int:
        return int(usage.amounts[self._dimension])

    def __set__(self, usage: "ResourceUsage", amount: int) -> None:
        usage._put(self._dimension, amount)


class ResourceUsage:
    """What a scope and everything inside it has spent so far.

    Seconds are read from a monotonic clock; ``start_time`` is for people only. What is written to
    an attribute of a child's usage counts in those around it as well; a scope, which charges all
    its ancestors itself, uses :meth:`add`.
    """

    def __init__(
        self,
        tokens_used: int = 0,
        steps_executed: int = 0,
        api_calls: int = 0,
        cost_dollars: float | Decimal = 0,
        *,
        before_seconds: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
        parent: "ResourceUsage | None" = None,
    ) -> None:
        """Start counting.

        ``before_seconds`` is time that counts although it passed before now, in an earlier attempt
        of the same run; ``parent`` is the usage of the scope around this one.
        """
        self._parent = parent
        self.amounts: dict[Dimension, Any] = {
            Dimension.TOKENS: tokens_used,
            Dimension.STEPS: steps_executed,
            Dimension.API_CALLS: api_calls,
            Dimension.COST_USD: money(cost_dollars),
        }
        self.checked_by: object = None
        """The mark of the scope that has found none of its limits overshot since the last write."""
        self.start_time = datetime.now(UTC)
        self._clock = clock
        self._start_monotonic = clock()
        self._before_seconds = before_seconds

    tokens_used = _Count(Dimension.TOKENS)
    """Input plus output tokens."""
    steps_executed = _Count(Dimension.STEPS)
    """Step executions, attempts not counted."""
    api_calls = _Count(Dimension.API_CALLS)
    """Provider attempts."""

    @property
    def cost_dollars(self) -> float:
        """US dollars; exact in ``amounts``, where they are a Decimal."""
        return float(self.amounts[Dimension.COST_USD])

    @cost_dollars.setter
    def cost_dollars(self, cost: float | Decimal) -> None:
        self._put(Dimension.COST_USD, money(cost))

    @property
    def time_elapsed_seconds(self) -> float:
        """Seconds since the scope began, on the monotonic clock."""
        return self._before_seconds + max(0.0, self._clock() - self._start_monotonic)

    @classmethod
    def unstarted(cls) -> "ResourceUsage":
        """Return a usage that counts seconds from :meth:`start` on."""
        usage = cls()
        usage._start_monotonic = math.inf
        return usage

    def start(self) -> None:
        """Begin to count seconds, unless that has begun."""
        if self._start_monotonic == math.inf:
            self.start_time, self._start_monotonic = datetime.now(UTC), self._clock()

    def fresh(self) -> "ResourceUsage":
        """Return a usage that begins now, on the same clock, with nothing spent."""
        return ResourceUsage(clock=self._clock)

    def child(self) -> "ResourceUsage":
        """Return the usage of a scope inside this one: it begins now, with nothing spent."""
        return ResourceUsage(clock=self._clock, parent=self)

    def of(self, dimension: Dimension) -> Amount:
        """Return what was spent in one dimension."""
        if dimension is Dimension.SECONDS:
            return self.time_elapsed_seconds
        return self.amounts.get(dimension, 0)  # type: ignore[no-any-return]

    def add(self, charge: Charge) -> None:
        """Count a charge."""
        amounts = self.amounts
        for dimension, amount in charge.items():
            amounts[dimension] = amounts.get(dimension, 0) + amount
        self.checked_by = None

    def exceeds(self, budget: Budget) -> tuple[bool, str | None]:
        """Return whether nothing is left, and of what.

        Asked before a further charge, never after the last: a limit that is used up exactly
        counts as exceeded.
        """
        tripped = self.tripped_by(budget)
        return (False, None) if tripped is None else (True, self.describe(*tripped))

    def tripped_by(self, budget: Budget) -> tuple[Dimension, Amount] | None:
        """Return the first dimension in which nothing is left, and its limit."""
        for dimension, limit in budget.limits().items():
            if self.of(dimension) >= limit:
                return dimension, limit
        return None

    def describe(self, dimension: Dimension, limit: Amount) -> str:
        """Say in one line which limit was hit and how much was used."""
        used = self.of(dimension)
        match dimension:
            case Dimension.SECONDS:
                return f"Time limit exceeded: {used:.1f}s/{limit}s"
            case Dimension.COST_USD:
                return f"Cost limit exceeded: ${used:f}/${limit:f}"
            case _:
                return f"{_TITLES[dimension]} limit exceeded: {used}/{limit}"

    def _put(self, dimension: Dimension, amount: Any) -> None:
        """Set an amount; those around it change by the same."""
        change = amount - self.amounts.get(dimension, 0)
        self.amounts[dimension] = amount
        self.checked_by = None
        outer = self._parent
        while outer is not None:
            outer.amounts[dimension] = outer.amounts.get(dimension, 0) + change
            outer.checked_by = None
            outer = outer._parent

    def to_dict(self) -> dict[str, int | float]:
        """Return what was counted as JSON numbers, seconds included."""
        counted = {d.value: float(a) if d in _FRACTIONS else a for d, a in self.amounts.items()}
        return counted | {Dimension.SECONDS.value: round(self.time_elapsed_seconds, 3)}


class BudgetExceededError(Stop):
    """A limit refuses what was about to be charged.

    It is a stop: nothing retries it, skips it or replaces it.
    """

    def __init__(
        self,
        usage: ResourceUsage,
        budget: Budget,
        reason: str,
        *,
        dimension: Dimension | None = None,
        scope: str | None = None,
    ) -> None:
        self.usage = usage
        self.budget = budget
        self.reason = reason
        super().__init__(
            StopCause(
                kind=StopKind.BUDGET,
                dimension=dimension,
                scope=scope,
                limit=budget.limits().get(dimension) if dimension else None,
                used=usage.of(dimension) if dimension else None,
                reason=reason,
            )
        )


_FRACTIONS = frozenset({Dimension.COST_USD})

_TITLES: Mapping[Dimension, str] = {
    Dimension.TOKENS: "Token",
    Dimension.STEPS: "Step",
    Dimension.API_CALLS: "API call",
    Dimension.LLM_CALLS_SMALL: "Small-tier LLM call",
    Dimension.LLM_CALLS_BIG: "Big-tier LLM call",
    Dimension.TOOL_CALLS: "Tool call",
    Dimension.TURNS: "Turn",
}
