"""Resource usage in a scope, and the error for exceeded budgets."""

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from caseworker.core.budget.budget import ESTIMATED_OF, Amount, Budget, Dimension, Unit, money
from caseworker.core.budget.stops import Stop, StopCause, StopKind

Charge = Mapping[Dimension, Amount]
"""Amounts by dimension, costs as Decimal; a dimension that is absent is not charged."""

NOTHING: Charge = {}


class CheckedCharge(dict[Dimension, Amount]):
    """A charge that is known to be valid, such as a constant; it is not validated again."""


class _Count:
    """A descriptor that reads and writes an integer amount of a usage."""

    def __init__(self, dimension: Dimension) -> None:
        self._dimension = dimension

    def __get__(self, usage: "ResourceUsage", owner: object = None) -> int:
        return int(usage._read(self._dimension))

    def __set__(self, usage: "ResourceUsage", amount: int) -> None:
        usage._put(self._dimension, amount)


class ResourceUsage:
    """The amounts that a scope and its child scopes have spent so far.

    Elapsed time is measured by a monotonic clock; ``start_time`` is for display only. Writing to an
    attribute also changes the usage of all ancestors. :meth:`add` does not, because a scope charges
    each ancestor itself. The class is thread-safe: ``usage.tokens_used += 10`` adds exactly ten,
    even if another thread writes between the read and the write. A copy does not belong to any
    scope.
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

        ``before_seconds`` is the time that earlier executions of the run took. ``parent`` is the
        usage of the parent scope.

        Raises:
            ValueError: an amount is negative or not finite.
        """
        self._parent = parent
        self.lock: threading.RLock = threading.RLock() if parent is None else parent.lock
        """Lock that guards the amounts; shared by all usages in one tree of scopes."""
        self._thread = threading.get_ident()
        self._read_in_threads: dict[tuple[int, Dimension], Any] = {}
        spent = {
            Dimension.TOKENS: tokens_used,
            Dimension.STEPS: steps_executed,
            Dimension.API_CALLS: api_calls,
            Dimension.COST_USD: cost_dollars,
        }
        self.amounts: dict[Dimension, Any] = checked(spent)
        self.checked_by: object = None
        """The ``mark`` of the account that last found its limits respected; each later write resets
        it to None."""
        self.start_time = datetime.now(UTC)
        self._clock = clock
        self._start_monotonic = clock()
        self._before_seconds = before_seconds

    def __reduce__(self) -> tuple[Any, ...]:
        seconds = self.time_elapsed_seconds
        return _restored, (self.amounts.copy(), self.start_time, seconds)

    tokens_used = _Count(Dimension.TOKENS)
    """Number of input and output tokens together."""
    steps_executed = _Count(Dimension.STEPS)
    """Executed steps; retries of a step are not counted."""
    api_calls = _Count(Dimension.API_CALLS)
    """Requests to model providers, retries included."""

    @property
    def cost_dollars(self) -> float:
        """Cost in US dollars as a float; ``amounts`` holds the exact Decimal.

        Assigning a new value adds the difference, rounded to 12 decimal places.
        """
        return float(self._read(Dimension.COST_USD))

    @cost_dollars.setter
    def cost_dollars(self, cost: float | Decimal) -> None:
        self._put(Dimension.COST_USD, cost)

    @property
    def time_elapsed_seconds(self) -> float:
        """Seconds since the scope started, including earlier executions of the run."""
        return self._before_seconds + max(0.0, self._clock() - self._start_monotonic)

    @classmethod
    def unstarted(cls) -> "ResourceUsage":
        """Return a usage whose time does not count until :meth:`start` is called."""
        usage = cls()
        usage._start_monotonic = math.inf
        return usage

    def start(self) -> None:
        """Start counting time; no effect if it was already started."""
        if self._start_monotonic == math.inf:
            self.start_time, self._start_monotonic = datetime.now(UTC), self._clock()

    def resume(self, before_seconds: float) -> None:
        """Add the time that earlier executions of the run took."""
        self._before_seconds += before_seconds

    def fresh(self) -> "ResourceUsage":
        """Return an empty usage without a parent; its time counts from now, on the same clock."""
        return ResourceUsage(clock=self._clock)

    def child(self) -> "ResourceUsage":
        """Return an empty usage for a child scope; its time counts from now."""
        return ResourceUsage(clock=self._clock, parent=self)

    def of(self, dimension: Dimension) -> Amount:
        """Return the amount spent in a dimension so far."""
        if dimension.interrupts:
            return self.time_elapsed_seconds
        return self.amounts.get(dimension, 0)  # type: ignore[no-any-return]

    def add(self, charge: Charge) -> None:
        """Add a charge to this usage but not to its ancestors."""
        with self.lock:
            amounts = self.amounts
            for dimension, amount in charge.items():
                amounts[dimension] = amounts.get(dimension, 0) + amount
            self.checked_by = None

    def exceeds(self, budget: Budget) -> tuple[bool, str | None]:
        """Return whether a limit of ``budget`` is exhausted, and a message that names it (or None).

        Call this before a further charge. A limit that is used exactly counts as exhausted.
        """
        tripped = self.tripped_by(budget)
        return (False, None) if tripped is None else (True, self.describe(*tripped))

    def tripped_by(self, budget: Budget) -> tuple[Dimension, Amount] | None:
        """Return the first dimension whose limit is exhausted, with the limit, or None."""
        for dimension, limit in budget.limits().items():
            if self.of(dimension) >= limit:
                return dimension, limit
        return None

    def describe(
        self,
        dimension: Dimension,
        limit: Amount,
        *,
        reserved: Amount | None = None,
        requested: Amount | None = None,
        for_answer: bool = False,
        owner: str = "run",
    ) -> str:
        """Describe an exceeded limit of ``owner`` in one line.

        It shows the used amount, and the reserved and requested amounts if they exceed the limit
        only together. With ``for_answer``, the reserved amount is the one that an agent keeps for
        its final answer, and it counts as part of the used amount.

        Some agents compress their conversation after "token limit exceeded", because a full context
        window has this message. So the message for tokens has other words.
        """
        used = self.of(dimension)
        amounts: dict[str, Amount | None] = {"used": used}
        if for_answer or used < limit:
            amounts |= {"reserved": reserved or None, "requested": requested}
        present = ((name, amount) for name, amount in amounts.items() if amount is not None)
        parts = [f"{dimension.unit.text(amount)} {name}" for name, amount in present]
        if for_answer:
            parts[1] = f"of which {parts[1]} for the last answer"
        headline = dimension.headline.format(owner=owner)
        return f"{headline}: {', '.join((*parts, f'limit {dimension.unit.text(limit)}'))}"

    def _read(self, dimension: Dimension) -> Any:
        """Return an amount.

        If the caller is not the thread that created the usage, remember the value for that thread.
        Its next write is then applied as the difference to this value, so ``+=`` is atomic.
        """
        with self.lock:
            amount, thread = self.amounts.get(dimension, 0), threading.get_ident()
            if thread != self._thread:
                self._read_in_threads[thread, dimension] = amount
            return amount

    def _put(self, dimension: Dimension, amount: Any) -> None:
        """Set an amount and apply the same change to all ancestors."""
        with self.lock:
            previous = self.amounts.get(dimension, 0)
            previous = self._read_in_threads.pop((threading.get_ident(), dimension), previous)
            change = _change(dimension, previous, amount)
            usage: ResourceUsage | None = self
            while usage is not None:
                usage.amounts[dimension] = usage.amounts.get(dimension, 0) + change
                usage.checked_by = None
                usage = usage._parent

    def to_dict(self) -> dict[str, int | float | None]:
        """Return the amounts as JSON numbers, including the elapsed seconds.

        Includes the estimated parts of ``tokens`` and ``cost_usd``. If the price of a call is
        unknown, ``cost_usd`` is None and ``cost_usd_known`` is the total of all other calls.
        """
        amounts = {**_NOTHING_ESTIMATED, **self.amounts}
        counted: dict[str, int | float | None] = {
            d.value: float(a) if d.unit is _DOLLARS else a for d, a in amounts.items()
        }
        if amounts.get(Dimension.UNPRICED_CALLS):
            counted["cost_usd_known"], counted["cost_usd"] = counted["cost_usd"], None
        return counted | {Dimension.SECONDS.value: round(self.time_elapsed_seconds, 3)}


def _restored(amounts: dict[Dimension, Any], start_time: datetime, seconds: float) -> ResourceUsage:
    usage = ResourceUsage(before_seconds=seconds)
    usage.amounts, usage.start_time = amounts, start_time
    return usage


def sum_of(charges: Iterable[Charge]) -> dict[Dimension, Any]:
    """Return the total of several charges, by dimension."""
    total: dict[Dimension, Any] = {}
    for charge in charges:
        for dimension, amount in charge.items():
            total[dimension] = total.get(dimension, 0) + amount
    return total


def checked(charge: Charge) -> dict[Dimension, Amount]:
    """Validate a charge and convert its cost to Decimal.

    Raises:
        ValueError: an amount is negative or not finite.
    """
    exact: dict[Dimension, Amount] = {}
    for dimension, amount in charge.items():
        if not ((type(amount) is int or math.isfinite(amount)) and amount >= 0):
            raise ValueError(f"{dimension} must be finite and not negative, not {amount}.")
        exact[dimension] = money(amount) if dimension.unit is _DOLLARS else amount
    return exact


def _change(dimension: Dimension, previous: Any, amount: Any) -> Any:
    """Return the difference of two amounts; a float of money is rounded to 12 decimal places."""
    if dimension.unit is _DOLLARS and not isinstance(amount, Decimal):
        change: Any = money(round(amount - float(previous), _MONEY_DIGITS))
    else:
        change = amount - previous
    return checked({dimension: change})[dimension]


class BudgetExceededError(Stop):
    """A charge was refused, because it would exceed a limit.

    This is a stop, so no error policy retries, skips or replaces it.
    """

    def __init__(
        self,
        usage: ResourceUsage,
        budget: Budget,
        reason: str,
        *,
        dimension: Dimension | None = None,
        scope: str | None = None,
        reserved: Amount | None = None,
        requested: Amount | None = None,
        resets_at: datetime | None = None,
    ) -> None:
        """``resets_at`` is the time at which the limit's period ends; None if it has none."""
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
                reserved=reserved,
                requested=requested,
                resets_at=resets_at,
                reason=reason,
            )
        )


_MONEY_DIGITS = 12
_DOLLARS = Unit.US_DOLLARS  # reading a member from its class is slow

_NOTHING_ESTIMATED = dict.fromkeys(ESTIMATED_OF.values(), 0)
