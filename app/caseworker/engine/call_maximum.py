"""The maximum that an attempt at a call reserves, fitted to the budget that is free.

A call reserves by a bound that always holds, if that fits. Otherwise it reserves by a closer bound,
with the output limit that the free budget pays. :func:`preview` returns the
reservation that a call would make, by the same steps.

See docs/gateway.md, "The maximum of a call".
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

from caseworker.core.budget.accounts import AccountLimit, Hold
from caseworker.core.budget.budget import Dimension
from caseworker.core.budget.ledger import FreeAmounts, Reservation, Scope
from caseworker.core.budget.stops import Stop
from caseworker.core.budget.usage import (
    NOTHING,
    BudgetExceededError,
    Charge,
    CheckedCharge,
    checked,
    sum_of,
)
from caseworker.engine.call import FREE, Call, Spent

NOTHING_FREE: Final = {Dimension.TOKENS: 0, Dimension.COST_USD: 0}


class CallMaximum:
    """Fits the attempts of a call to the free budget."""

    def __init__(self, call: Call, free_in_accounts: Callable[[], FreeAmounts] | None) -> None:
        """``free_in_accounts`` returns the free amounts of the accounts; None if there are none."""
        self._call = call
        self._free_in_accounts = free_in_accounts
        self.estimate: Spent = FREE
        """Maximum usage of the current or the next attempt."""
        self.counted: Charge = NOTHING
        """Charge for the attempt in addition to its usage."""

    @property
    def charge(self) -> CheckedCharge:
        """The charge that the attempt reserves."""
        return self.estimate.charge(self.counted)

    @property
    def minimum(self) -> Spent:
        """Maximum usage of an attempt with the smallest output limit."""
        return self._call.estimate(NOTHING_FREE)

    def hard_charge(self, free: FreeAmounts) -> Charge | None:
        """Return the charge by the bound that always holds; None if it does not fit."""
        free, in_accounts = self._free_in_both(free)
        estimate = self._call.maximum(free)
        if estimate is None or (in_accounts and _exceeds(estimate, free)):
            return None
        self.estimate = estimate
        return self.charge

    def near_charge(self, free: FreeAmounts) -> Charge:
        """Return the charge by the closer bound, with the output limit that ``free`` pays."""
        free, in_accounts = self._free_in_both(free)
        self.estimate = self._call.estimate(free)
        if in_accounts and _exceeds(self.estimate, free):
            self.estimate = self.minimum
        return self.charge

    def least_charge(self) -> Charge:
        """Return the charge by the closer bound, with the smallest output limit."""
        return self.near_charge(NOTHING_FREE)

    @property
    def preferred(self) -> Callable[[FreeAmounts], Charge] | None:
        """Function that returns the charge for a free budget; None if it is always the same."""
        return None if self.estimate == FREE else self.near_charge

    def _free_in_both(self, free: FreeAmounts) -> tuple[FreeAmounts, bool]:
        """Return the free amounts of scopes and accounts, and whether there are accounts."""
        if self._free_in_accounts is None:
            return free, False
        in_accounts = self._free_in_accounts()
        smallest = {each: min(in_accounts.get(each, n), n) for each, n in free.items()}
        return {**in_accounts, **smallest}, True


def free_in(limits: Sequence[AccountLimit]) -> FreeAmounts:
    """Return how much is free in accounts with these limits."""
    amounts = dict[Dimension, Decimal]()
    for limit in limits:
        is_over = limit.resets_at is not None and limit.resets_at <= datetime.now(UTC)
        free = limit.limit - (0 if is_over else limit.used + limit.reserved)
        amounts[limit.dimension] = min(free, amounts.get(limit.dimension, free))
    return amounts


def exceeded(limits: Sequence[AccountLimit], minimum: Charge) -> BudgetExceededError | None:
    """Return the refusal of a charge that fits into no account without other calls, else None."""
    refusals = (
        limit.exceeded_by(minimum)
        for limit in limits
        if not limit.allows(minimum, include_reserved=False)
    )
    return next(refusals, None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """The reservation that a call would make now."""

    spent: Spent
    """Maximum usage; that with the smallest output limit if the call would not be admitted."""
    charge: Charge
    waits: bool = False
    """Whether the call would wait until other calls are settled."""
    refusal: Stop | None = None
    """Why the call would be refused; None if it would not."""


def preview(
    call: Call, scope: Scope, cached: FreeAmounts | None, limits: Sequence[AccountLimit]
) -> Preview:
    """Return the reservation that a call would make in a scope and in the accounts above it.

    ``limits`` are those of the accounts. ``cached`` are their free amounts that the process knows
    without the store; None if there are no accounts. Nothing stays reserved.
    """
    result = _preview_of_attempt(call, scope, cached, limits)
    if result is None:  # the call knows the limits now, and requests less
        result = _preview_of_attempt(call, scope, free_in(limits), limits)
    if result is None:
        minimum = CallMaximum(call, None).minimum
        result = Preview(spent=minimum, charge=minimum.charge(_counted(call)), waits=True)
    return result


def _counted(call: Call) -> Charge:
    return checked(sum_of((call.per_call, call.per_attempt)))


def _preview_of_attempt(
    call: Call, scope: Scope, in_accounts: FreeAmounts | None, limits: Sequence[AccountLimit]
) -> Preview | None:
    """Return the reservation of an attempt; None if it would request less at once.

    ``in_accounts`` are the free amounts of the accounts that the process knows.
    """
    maximum = CallMaximum(call, None if in_accounts is None else lambda: in_accounts)
    maximum.counted = _counted(call)
    result = _preview_in_scopes(maximum, scope)
    if result.waits or result.refusal is not None or _fit(limits, result.charge):
        return result
    spent = maximum.minimum
    minimum = spent.charge(maximum.counted)
    if (refusal := exceeded(limits, minimum)) is not None:
        return Preview(spent=spent, charge=minimum, refusal=refusal)
    if _fit(limits, minimum):
        return None
    return Preview(spent=spent, charge=minimum, waits=True)


def _preview_in_scopes(maximum: CallMaximum, scope: Scope) -> Preview:
    """Reserve a call in its scopes and release it at once, so that no other call notices it."""
    reservation = scope.reserve_now(maximum.hard_charge)
    if reservation is not None:
        reservation.settle()
        return Preview(spent=maximum.estimate, charge=maximum.charge)
    minimum = maximum.least_charge()
    smallest = maximum.estimate
    try:
        request = scope.ask(minimum, maximum.preferred, tracked=False)
    except BudgetExceededError as refused:
        return Preview(spent=smallest, charge=minimum, refusal=refused)
    if isinstance(request, Reservation):
        request.settle()
        return Preview(spent=maximum.estimate, charge=maximum.charge)
    request.leave()
    return Preview(spent=smallest, charge=minimum, waits=True)


def _fit(limits: Sequence[AccountLimit], charge: Charge) -> bool:
    """Return whether a call would be reserved in accounts, next to the calls in flight."""
    hold = Hold.of_charge("", 1, charge)
    return all(
        limit.used + limit.reserved + hold.amount(limit.dimension) <= limit.limit
        for limit in limits
    )


def _exceeds(estimate: Spent, free: FreeAmounts) -> bool:
    """Return whether an estimate exceeds the free amounts, even by a rounding error."""
    charge = estimate.charge()
    return any(
        charge.get(dimension, 0) > free[dimension]
        for dimension in NOTHING_FREE
        if dimension in free
    )
