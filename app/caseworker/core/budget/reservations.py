"""Accounts of budget scopes, reservations, and the queue of pending reservation requests.

A request that does not fit only because of other reservations waits in a queue, which all scopes of
a tree share, until enough reservations are settled. It holds nothing while it waits. After each
settlement, the queue is processed in order of arrival by three rules:

- Refuse a request that would not fit even if only its own reservations were held.
- Grant a request that fits next to the usage, the reservations, and the *claims* (the requested
  amounts) of earlier requests in the queue. So no request is overtaken in a dimension that it waits
  for, and a request that does not need such a dimension is not delayed.
- Ignore claims when the request is for work that already holds a reservation, such as a call made
  inside another call. Earlier requests may wait for that reservation. If such requests wait for
  each other, they are deadlocked, and the most recent one is refused.

A request's own reservations are those made in the same task or in an enclosing task. They are
tracked in a context variable.
"""

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from caseworker.core.budget.budget import Amount, Budget, Dimension
from caseworker.core.budget.usage import (
    NOTHING,
    BudgetExceededError,
    Charge,
    CheckedCharge,
    ResourceUsage,
    checked,
    sum_of,
)

WARNING_SHARES = (0.7, 0.9)


class Account:
    """The limits of one budget scope, its usage, and the amounts held for work in flight.

    All methods must be called under the lock that all scopes of one tree share.
    """

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
        limits = budget.limits()
        self.limits = {name: limit for name, limit in limits.items() if not name.interrupts}
        """Upper limits by dimension, without the time limit, because time cannot be reserved."""
        self.reserved_amounts: dict[Dimension, Amount] = {}
        self.mark = object()
        """Marker object: ``usage.checked_by`` is set to it once the usage was found to be within
        the limits."""
        self._warn = warn
        self._warned: tuple[tuple[Dimension, float], ...] = ()  # smaller than an empty set

    def refusal(
        self, charge: Charge, holds: Mapping[Dimension, Amount]
    ) -> BudgetExceededError | None:
        """Return the error if a charge would exceed a limit, else None.

        The usage so far and the amounts in ``reserved_amounts`` count as well.
        """
        usage, limits = self.usage, self.limits
        used = usage.amounts
        if usage.checked_by is not self.mark:
            # Set before the check: a concurrent write from a node's thread resets it to None.
            usage.checked_by = self.mark
            # Tokens and cost can exceed their limit, because their amounts are known only
            # afterwards. Then everything is refused, even in a dimension that is not exceeded.
            for dimension, limit in limits.items():
                if used.get(dimension, 0) > limit:
                    usage.checked_by = None
                    return self.stop(dimension, charge.get(dimension, 0))
        for dimension, amount in charge.items():
            bound = limits.get(dimension)
            if bound is None or not amount:
                continue
            if used.get(dimension, 0) + holds.get(dimension, 0) + amount > bound:
                return self.stop(dimension, amount)
        return None

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
        limit, reserved = self.budget.limits()[dimension], self.reserved_amounts.get(dimension, 0)
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
        used = self.usage.amounts
        for dimension in charge:
            limit = self.limits.get(dimension)
            if not limit:
                continue
            for share in WARNING_SHARES:
                reached = float(used.get(dimension, 0)) >= share * float(limit)
                if reached and (dimension, share) not in self._warned:
                    self._warned += ((dimension, share),)
                    self._warn(self, dimension, share)


FreeAmounts = Mapping[Dimension, Amount]
"""Free amounts by dimension; a dimension without a limit is absent."""

Claims = dict[tuple[Account, Dimension], Amount]
"""Amounts that earlier requests in the queue wait for, by account and dimension."""

NO_CLAIMS: Claims = {}


@dataclass(slots=True, eq=False)
class Holder:
    """The step that currently makes reservations, as a mutable object.

    The step runner sets ``path`` for each step, which is cheaper than setting a context variable.
    """

    path: object = None
    """Path of the step whose end releases the reservations; None if they are not tracked."""


HOLDER: ContextVar[Holder] = ContextVar("holder", default=Holder())  # noqa: B039 - never changed

_TASK_RESERVATIONS: ContextVar[tuple["Reservation", ...]] = ContextVar(
    "own_reservations", default=()
)


@dataclass(slots=True, eq=False)
class Reservation:
    """An amount reserved for one piece of work; settle it exactly once.

    Used as a context manager, it is released at the end of the block unless it was settled before.
    """

    queue: "ReservationQueue"
    """Queue of pending requests of the tree of scopes."""
    _accounts: Sequence[Account]
    charge: Charge
    """Reserved amounts by dimension."""
    _released: bool = False

    @property
    def accounts(self) -> Sequence[Account]:
        """Accounts in which the amount is held; empty once it was settled or released."""
        return () if self._released else self._accounts

    def settle(self, used: Charge = NOTHING) -> None:
        """Release the reserved amount and charge the actual usage; a second call has no effect.

        Raises:
            ValueError: an amount is negative or not finite. The amount then stays reserved.
        """
        if type(used) is not CheckedCharge:
            used = checked(used)
        with self.queue.lock:
            is_released = self._release_hold()
            accounts, self._accounts = self._accounts, ()
            if used:
                for account in accounts:
                    account.usage.add(used)
                    account.warn_of(used)
            if is_released:
                self.queue.serve()

    def release(self) -> None:
        """Release the reserved amount; a later :meth:`settle` still charges its usage."""
        with self.queue.lock:
            if self._release_hold():
                self.queue.serve()

    def _release_hold(self) -> bool:
        """Release the hold; return False if it was released before."""
        if self._released:
            return False
        for account in self._accounts:
            for dimension, amount in self.charge.items():
                account.reserved_amounts[dimension] -= amount  # type: ignore[operator]
        self._released = True
        self.queue.tracked.pop(self, None)
        return True

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.settle()


@dataclass(slots=True, eq=False)
class Waiter:
    """A pending reservation request in the queue."""

    queue: "ReservationQueue"
    accounts: Sequence[Account]
    minimum: Charge
    preferred: Callable[[FreeAmounts], Charge] | None
    task_reservations: tuple[Reservation, ...]
    holder: object
    outcome: Reservation | BudgetExceededError | None = None
    """Reservation if the request was granted, error if it was refused; None while it is pending."""
    _wake: Callable[[], object] | None = None

    def on_end(self, wake: Callable[[], object]) -> None:
        """Register ``wake`` to be called when the request is granted or refused.

        It is called in the thread that grants or refuses the request, or at once if that has
        already happened.
        """
        with self.queue.lock:
            self._wake = wake
            if self.outcome is not None:
                wake()

    def end(self, outcome: Reservation | BudgetExceededError) -> None:
        """Grant or refuse the request, and call the callback."""
        self.outcome = outcome
        if self._wake is not None:
            self._wake()

    def reservation(self) -> Reservation:
        """Return the granted reservation; call it in the task that made the request.

        Raises:
            BudgetExceededError: the request was refused.
            RuntimeError: the request is still pending.
        """
        if isinstance(self.outcome, Reservation):
            return self.queue.with_owner(self.outcome, self.holder)
        raise self.outcome or RuntimeError("The request is still pending.")

    def leave(self) -> None:
        """Withdraw the request; if a reservation was already granted, release it."""
        with self.queue.lock:
            if isinstance(self.outcome, Reservation):
                self.outcome.release()
            self.queue.remove(self)


@dataclass(slots=True, eq=False)
class ReservationQueue:
    """The queue of pending reservation requests in one tree of scopes, in order of arrival."""

    lock: threading.RLock
    tracked: dict[Reservation, Any] = field(default_factory=dict)
    """Reservations to release when their step ends, each with the path of that step."""
    _waiters: list[Waiter] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self._waiters)

    def reserve(self, accounts: Sequence[Account], charge: Charge) -> Reservation:
        """Reserve a charge now, without regard to queued requests.

        Raises:
            BudgetExceededError: a limit would be exceeded.
        """
        with self.lock:
            refused = _refusal(accounts, charge, None)
            if refused is not None:
                raise refused
            return self.with_owner(self._hold(accounts, charge), HOLDER.get().path)

    def ask(
        self,
        accounts: Sequence[Account],
        minimum: Charge,
        preferred: Callable[[FreeAmounts], Charge] | None,
        *,
        tracked: bool,
    ) -> "Reservation | Waiter":
        """Reserve at least ``minimum`` now, or enqueue a request; see ``Scope.ask`` for details."""
        holder = HOLDER.get().path if tracked else None
        task_reservations = _own_reservations()
        if task_reservations:
            task_reservations = tuple(each for each in task_reservations if each.queue is self)
        with self.lock:
            refused = _refusal(accounts, minimum, task_reservations)
            if refused is not None:
                raise refused
            claims = self._claims() if self._waiters and not task_reservations else {}
            if _fits(accounts, minimum, claims):
                charge = _choose_charge(accounts, minimum, preferred, claims)
                return self.with_owner(self._hold(accounts, charge), holder)
            waiter = Waiter(self, accounts, minimum, preferred, task_reservations, holder)
            self._waiters.append(waiter)
            self._refuse_deadlocked()
            return waiter

    def reserve_now(
        self, accounts: Sequence[Account], charge_for: Callable[[FreeAmounts], Charge | None]
    ) -> "Reservation | None":
        """Reserve the charge that ``charge_for`` returns for the free capacity, or nothing.

        Returns None if ``charge_for`` does, or if the charge does not fit next to the usage, the
        reservations and the earlier requests.
        """
        with self.lock:
            claims = self._claims() if self._waiters and not _own_reservations() else {}
            charge = charge_for(free_amounts(accounts, claims))
            if charge is None or _refusal(accounts, charge, None) is not None:
                return None
            if claims and not _fits(accounts, charge, claims):
                return None
            return self.with_owner(self._hold(accounts, charge), None)

    def remove(self, waiter: Waiter) -> None:
        """Remove a request if it is still queued. The caller holds the lock."""
        if waiter in self._waiters:
            self._waiters.remove(waiter)
            self.serve()

    def serve(self) -> None:
        """Grant requests that fit now; refuse those that never will. The caller holds the lock."""
        if not self._waiters:
            return
        claims: Claims = {}
        waiting, self._waiters = self._waiters, []
        for waiter in waiting:
            outcome = self._outcome(waiter, claims)
            if outcome is not None:
                waiter.end(outcome)
            else:
                _claim(claims, waiter)
                self._waiters.append(waiter)
        self._refuse_deadlocked()

    def _outcome(self, waiter: Waiter, claims: Claims) -> Reservation | BudgetExceededError | None:
        """Return the reservation or the refusal of a request; None if it stays pending."""
        accounts, minimum = waiter.accounts, waiter.minimum
        refused = _refusal(accounts, minimum, waiter.task_reservations)
        if refused is not None:
            return refused
        # A waiter with own holds overtakes: requests before it may wait for exactly these holds.
        ahead = {} if waiter.task_reservations else claims
        if not _fits(accounts, minimum, ahead):
            return None
        return self._hold(accounts, _choose_charge(accounts, minimum, waiter.preferred, ahead))

    def _refuse_deadlocked(self) -> None:
        """Refuse the most recent of the deadlocked requests until no deadlock is left."""
        while (stuck := self._deadlocked()) is not None:
            waiter, refused = stuck
            self._waiters.remove(waiter)
            waiter.end(refused)
            self.serve()

    def _deadlocked(self) -> tuple[Waiter, BudgetExceededError] | None:
        """Return the most recent request of a deadlock with its refusal, or None.

        Requests that hold reservations are deadlocked if none of them fits next to their own holds.
        """
        # Reduction of the wait-for graph: drop each waiter that would fit if only the holds of the
        # remaining ones counted, because it waits for work that can continue. The waiters that are
        # left wait for each other, and the most recent one is refused.
        stuck = [waiter for waiter in self._waiters if waiter.task_reservations]
        while stuck:
            reservations = {
                reservation for waiter in stuck for reservation in waiter.task_reservations
            }
            refusals = ((w, _refusal(w.accounts, w.minimum, reservations)) for w in stuck)
            still = [(waiter, refused) for waiter, refused in refusals if refused is not None]
            if len(still) == len(stuck):
                return still[-1]
            stuck = [waiter for waiter, _ in still]
        return None

    def _claims(self) -> Claims:
        claims: Claims = {}
        for waiter in self._waiters:
            _claim(claims, waiter)
        return claims

    def _hold(self, accounts: Sequence[Account], charge: Charge) -> Reservation:
        for account in accounts:
            holds = account.reserved_amounts
            for dimension, amount in charge.items():
                holds[dimension] = holds.get(dimension, 0) + amount  # type: ignore[operator]
        return Reservation(self, accounts, charge)

    def with_owner(self, reservation: Reservation, holder: object) -> Reservation:
        """Record the current task, and the step ``holder`` if given, as owner of a reservation."""
        _TASK_RESERVATIONS.set((*_own_reservations(), reservation))
        if holder is not None:
            self.tracked[reservation] = holder
        return reservation


def _own_reservations() -> tuple[Reservation, ...]:
    reservations = _TASK_RESERVATIONS.get()
    return tuple(each for each in reservations if each.accounts) if reservations else reservations


def _refusal(
    accounts: Sequence[Account], charge: Charge, beside: Collection[Reservation] | None
) -> BudgetExceededError | None:
    """Return the error if a charge does not fit next to the ``beside`` reservations, else None.

    ``beside=None`` counts all current holds.
    """
    for account in accounts:
        if not account.limits:
            continue
        holds: Mapping[Dimension, Amount] = NOTHING
        if beside is None:
            holds = account.reserved_amounts
        elif beside:
            holds = sum_of([each.charge for each in beside if account in each.accounts])
        refused = account.refusal(charge, holds)
        if refused is not None:
            return refused
    return None


def free_amounts(
    accounts: Iterable[Account], claims: Claims = NO_CLAIMS
) -> dict[Dimension, Amount]:
    """Return how much all accounts can still reserve; ``claims`` are not free either."""
    smallest: dict[Dimension, Any] = {}
    for account in accounts:
        used, holds = account.usage.amounts, account.reserved_amounts
        for dimension, limit in account.limits.items():
            occupied = used.get(dimension, 0) + holds.get(dimension, 0)
            free = limit - (occupied + claims.get((account, dimension), 0))
            if dimension not in smallest or free < smallest[dimension]:
                smallest[dimension] = free
    return smallest


def _fits(accounts: Sequence[Account], charge: Charge, claims: Claims) -> bool:
    """Return whether a charge fits next to the usage, the reservations and the claims."""
    for account in accounts:
        used, holds = account.usage.amounts, account.reserved_amounts
        for dimension, amount in charge.items():
            limit = account.limits.get(dimension)
            if limit is None or not amount:
                continue
            occupied = used.get(dimension, 0) + holds.get(dimension, 0)
            if occupied + claims.get((account, dimension), 0) + amount > limit:
                return False
    return True


def _claim(claims: Claims, waiter: Waiter) -> None:
    for account in waiter.accounts:
        for dimension, amount in waiter.minimum.items():
            if dimension in account.limits:
                key = (account, dimension)
                claims[key] = claims.get(key, 0) + amount  # type: ignore[operator]


def _choose_charge(
    accounts: Sequence[Account],
    minimum: Charge,
    preferred: Callable[[FreeAmounts], Charge] | None,
    claims: Claims,
) -> Charge:
    """Return the preferred charge if it fits, else ``minimum``."""
    if preferred is None:
        return minimum
    preference = preferred(free_amounts(accounts, claims))
    charge: Charge = preference if type(preference) is CheckedCharge else checked(preference)
    return charge if _fits(accounts, charge, claims) else minimum
