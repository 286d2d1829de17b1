"""What was spent."""

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

from caseworker.control.budget import Amount, Budget, Dimension, money
from caseworker.control.stops import Stop, StopCause, StopKind

Charge = Mapping[Dimension, Amount]
"""Amounts by dimension; money as Decimal. What is not named is not charged."""

NOTHING: Charge = {}


class CheckedCharge(dict[Dimension, Amount]):
    """A charge that is known to be fit, such as a constant: it is not checked again."""


class _Count:
    """An attribute of a usage that reads and writes a whole amount."""

    def __init__(self, dimension: Dimension) -> None:
        self._dimension = dimension

    def __get__(self, usage: "ResourceUsage", owner: object = None) -> int:
        return int(usage._read(self._dimension))

    def __set__(self, usage: "ResourceUsage", amount: int) -> None:
        usage._put(self._dimension, amount)


class ResourceUsage:
    """What a scope and everything inside it has spent so far.

    Seconds are read from a monotonic clock; ``start_time`` is for people only. What is written to
    an attribute of a child's usage counts in those around it as well; a scope, which charges all
    its ancestors itself, uses :meth:`add`. Any thread may count: ``usage.tokens_used += 10`` adds
    exactly ten, whatever other threads add between its reading and its writing. A copy is a usage
    of its own, outside of every scope.
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

        Raises:
            ValueError: an amount is negative or not finite.
        """
        self._parent = parent
        self.lock: threading.RLock = threading.RLock() if parent is None else parent.lock
        """Held while amounts change; all usages of one tree share it."""
        self._thread = threading.get_ident()
        self._read_in_threads: dict[tuple[int, Dimension], Any] = {}
        self.amounts: dict[Dimension, Any] = {
            **checked({Dimension.TOKENS: tokens_used, Dimension.STEPS: steps_executed}),
            **checked({Dimension.API_CALLS: api_calls, Dimension.COST_USD: cost_dollars}),
        }
        self.checked_by: object = None
        """The mark of the scope that has found none of its limits overshot since the last write."""
        self.start_time = datetime.now(UTC)
        self._clock = clock
        self._start_monotonic = clock()
        self._before_seconds = before_seconds

    def __reduce__(self) -> tuple[Any, ...]:
        seconds = self.time_elapsed_seconds
        return _restored, (self.amounts.copy(), self.start_time, seconds)

    tokens_used = _Count(Dimension.TOKENS)
    """Input plus output tokens."""
    steps_executed = _Count(Dimension.STEPS)
    """Step executions, attempts not counted."""
    api_calls = _Count(Dimension.API_CALLS)
    """Provider attempts."""

    @property
    def cost_dollars(self) -> float:
        """US dollars; exact in ``amounts``, where they are a Decimal.

        What is added to it is taken as the decimal that was meant, to a millionth of a millionth.
        """
        return float(self._read(Dimension.COST_USD))

    @cost_dollars.setter
    def cost_dollars(self, cost: float | Decimal) -> None:
        self._put(Dimension.COST_USD, cost)

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

    def resume(self, before_seconds: float) -> None:
        """Count seconds that had passed before this began."""
        self._before_seconds += before_seconds

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
        with self.lock:
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

    def describe(
        self,
        dimension: Dimension,
        limit: Amount,
        *,
        reserved: Amount | None = None,
        requested: Amount | None = None,
        for_answer: bool = False,
    ) -> str:
        """Say in one line which limit was hit: what was used, reserved, requested and allowed.

        ``for_answer``: what is reserved is a part of what was used, for the last answer.
        """
        amounts = {"used": self.of(dimension), "reserved": reserved, "requested": requested}
        known = ((name, amount) for name, amount in amounts.items() if amount is not None)
        parts = [f"{shown_amount(dimension, amount)} {name}" for name, amount in known]
        if for_answer:
            parts[1] = f"of which {parts[1]} for the last answer"
        allowed = f"limit {shown_amount(dimension, limit)}"
        return f"{_TITLES[dimension]} limit exceeded: {', '.join((*parts, allowed))}"

    def _read(self, dimension: Dimension) -> Any:
        """Return an amount; another thread's next write counts as a change of what it has read."""
        with self.lock:
            amount, thread = self.amounts.get(dimension, 0), threading.get_ident()
            if thread != self._thread:
                self._read_in_threads[thread, dimension] = amount
            return amount

    def _put(self, dimension: Dimension, amount: Any) -> None:
        """Set an amount; those around it change by the same."""
        with self.lock:
            known = self.amounts.get(dimension, 0)
            known = self._read_in_threads.pop((threading.get_ident(), dimension), known)
            change = _change(dimension, known, amount)
            usage: ResourceUsage | None = self
            while usage is not None:
                usage.amounts[dimension] = usage.amounts.get(dimension, 0) + change
                usage.checked_by = None
                usage = usage._parent

    def to_dict(self) -> dict[str, int | float | None]:
        """Return what was counted as JSON numbers, seconds included.

        Of ``tokens`` and ``cost_usd`` the parts that were estimated are given too. If the price of
        a call is not known, neither is the sum: ``cost_usd`` is None, and ``cost_usd_known`` the
        sum of the other calls.
        """
        amounts = {**_NOTHING_ESTIMATED, **self.amounts}
        counted: dict[str, int | float | None] = {
            d.value: float(a) if d in _FRACTIONS else a for d, a in amounts.items()
        }
        if amounts.get(Dimension.UNPRICED_CALLS):
            counted["cost_usd_known"], counted["cost_usd"] = counted["cost_usd"], None
        return counted | {Dimension.SECONDS.value: round(self.time_elapsed_seconds, 3)}


def _restored(amounts: dict[Dimension, Any], start_time: datetime, seconds: float) -> ResourceUsage:
    usage = ResourceUsage(before_seconds=seconds)
    usage.amounts, usage.start_time = amounts, start_time
    return usage


def sum_of(charges: Iterable[Charge]) -> dict[Dimension, Any]:
    """Return what charges come to together."""
    total: dict[Dimension, Any] = {}
    for charge in charges:
        for dimension, amount in charge.items():
            total[dimension] = total.get(dimension, 0) + amount
    return total


def checked(charge: Charge) -> Charge:
    """Return a charge with its money as Decimal.

    Raises:
        ValueError: an amount is negative or not finite.
    """
    if all(type(amount) is int and amount >= 0 for amount in charge.values()):
        return charge
    return {dimension: _checked(dimension, amount) for dimension, amount in charge.items()}


def _checked(dimension: Dimension, amount: Amount) -> Amount:
    if not (math.isfinite(amount) and amount >= 0):
        raise ValueError(f"What is spent of {dimension} is zero or more, not {amount}.")
    return money(amount) if dimension in _FRACTIONS else amount


def _change(dimension: Dimension, known: Any, amount: Any) -> Any:
    """Return by how much an amount was changed; of money read as a float, what was meant."""
    if dimension in _FRACTIONS and not isinstance(amount, Decimal):
        change: Any = money(round(amount - float(known), _MONEY_DIGITS))
    else:
        change = amount - known
    return _checked(dimension, change)


def shown_amount(dimension: Dimension, amount: Amount) -> str:
    """Return an amount with its unit."""
    match dimension:
        case Dimension.SECONDS:
            return f"{amount:.1f}s"
        case Dimension.COST_USD:
            return f"${amount:f}"
        case _:
            return str(amount)


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
        reserved: Amount | None = None,
        requested: Amount | None = None,
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
                reserved=reserved,
                requested=requested,
                reason=reason,
            )
        )


_MONEY_DIGITS = 12

_FRACTIONS = frozenset({Dimension.COST_USD, Dimension.COST_USD_ESTIMATED})

_NOTHING_ESTIMATED = {Dimension.TOKENS_ESTIMATED: 0, Dimension.COST_USD_ESTIMATED: 0}

_TITLES: Mapping[Dimension, str] = {
    Dimension.TOKENS: "Token",
    Dimension.SECONDS: "Time",
    Dimension.STEPS: "Step",
    Dimension.API_CALLS: "API call",
    Dimension.COST_USD: "Cost",
    Dimension.LLM_CALLS: "LLM call",
    Dimension.LLM_CALLS_SMALL: "Small-tier LLM call",
    Dimension.LLM_CALLS_BIG: "Big-tier LLM call",
    Dimension.TOOL_CALLS: "Tool call",
    Dimension.TURNS: "Turn",
}
