"""Reservations, and the queue of pending reservation requests.

A request that does not fit only because of other reservations waits in a queue, which all scopes of
a tree share, until enough reservations are settled. It holds nothing while it waits. After each
settlement, the queue is processed in order of arrival by three rules:

- Refuse a request that would not fit even if no reservations but its own were held.
- Grant a request that fits next to the usage, the reservations, and the *claims* (the requested
  amounts) of earlier requests in the queue. So no request is overtaken in a dimension that it waits
  for, and a request that does not need such a dimension is not delayed.
- Ignore claims when the request is for work that already holds a reservation, such as a call made
  inside another call, because earlier requests may wait for that reservation. If such requests wait
  for each other, they are deadlocked, and the most recent one is refused.

A request's own reservations are those made in the same task or in an enclosing task. They are
tracked in a context variable.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Self

from caseworker.core.budget.account import Account
from caseworker.core.budget.budget import Amount, Dimension
from caseworker.core.budget.usage import NOTHING, BudgetExceededError, Charge, checked, sum_of

Room = Callable[[Dimension], Amount | None]
"""Callback that returns the free amount of a budget dimension; None means unlimited."""

Claims = dict[tuple[Account, Dimension], Amount]
"""Amounts that earlier requests in the queue wait for, by account and dimension."""


class Holder:
    """The step that currently makes reservations, as a mutable object.

    The step runner sets ``path`` for each step, which is cheaper than setting a context variable.
    """

    __slots__ = ("path",)

    def __init__(self, path: object = None) -> None:
        self.path = path
        """Path of the step whose end releases the reservations; None if they are not tracked."""


HOLDER: ContextVar[Holder] = ContextVar("holder", default=Holder())  # noqa: B039 - never changed

_OWN: ContextVar[tuple["Reservation", ...]] = ContextVar("own_reservations", default=())


class Reservation:
    """An amount reserved for one piece of work; settle it exactly once.

    Used as a context manager, it is released at the end of the block unless it was settled before.
    """

    __slots__ = ("_accounts", "_released", "charge", "line")

    def __init__(self, line: "WaitingLine", accounts: Sequence[Account], charge: Charge) -> None:
        self.line = line
        """Queue of pending requests of the tree of scopes."""
        self._accounts = accounts
        self._released = False
        self.charge = charge
        """Reserved amounts by dimension."""

    @property
    def accounts(self) -> Sequence[Account]:
        """Accounts in which the amount is held; empty once it was settled or released."""
        return () if self._released else self._accounts

    def settle(self, used: Charge = NOTHING) -> None:
        """Release the reserved amount and charge the actual usage; a second call has no effect.

        Raises:
            ValueError: an amount is negative or not finite. The amount then stays reserved.
        """
        used = checked(used)
        with self.line.lock:
            held = self._give_back()
            accounts, self._accounts = self._accounts, ()
            if used:
                for account in accounts:
                    account.usage.add(used)
                    account.warn_of(used)
            if held:
                self.line.serve()

    def release(self) -> None:
        """Release the reserved amount; a later :meth:`settle` still charges its usage."""
        with self.line.lock:
            if self._give_back():
                self.line.serve()

    def _give_back(self) -> bool:
        """Release the hold; return False if it was released before."""
        if self._released:
            return False
        for account in self._accounts:
            account.give_back(self.charge)
        self._released = True
        self.line.tracked.pop(self, None)
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


class Waiter:
    """A pending reservation request in the queue."""

    __slots__ = ("_wake", "accounts", "holder", "least", "line", "outcome", "own", "wanted")

    def __init__(
        self,
        line: "WaitingLine",
        accounts: Sequence[Account],
        least: Charge,
        wanted: Callable[[Room], Charge] | None,
        own: tuple[Reservation, ...],
        holder: object,
    ) -> None:
        self.line = line
        self.accounts = accounts
        self.least = least
        self.wanted = wanted
        self.own = own
        self.holder = holder
        self.outcome: Reservation | BudgetExceededError | None = None
        """Reservation if the request was granted, error if it was refused; None while it is
        pending."""
        self._wake: Callable[[], object] | None = None

    def on_end(self, wake: Callable[[], object]) -> None:
        """Register ``wake`` to be called when the request is granted or refused.

        It is called in the thread that grants or refuses the request, or at once if that has
        already happened.
        """
        with self.line.lock:
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
            return self.line.kept(self.outcome, self.holder)
        raise self.outcome or RuntimeError("The request is still pending.")

    def leave(self) -> None:
        """Withdraw the request; if a reservation was already granted, release it."""
        with self.line.lock:
            if isinstance(self.outcome, Reservation):
                self.outcome.release()
            self.line.remove(self)


class WaitingLine:
    """The queue of pending reservation requests in one tree of scopes, in order of arrival."""

    __slots__ = ("_waiters", "lock", "tracked")

    def __init__(self, lock: threading.RLock) -> None:
        self.lock = lock
        self.tracked: dict[Reservation, Any] = {}
        """Reservations to release when their step ends, each with the path of that step."""
        self._waiters: list[Waiter] = []

    def __len__(self) -> int:
        return len(self._waiters)

    def reserve(self, accounts: Sequence[Account], charge: Charge) -> Reservation:
        """Reserve a charge now, without regard to queued requests.

        Raises:
            BudgetExceededError: a limit would be exceeded.
        """
        with self.lock:
            _require(accounts, charge, None)
            return self._hold(accounts, charge, HOLDER.get().path)

    def ask(
        self,
        accounts: Sequence[Account],
        least: Charge,
        wanted: Callable[[Room], Charge] | None,
        *,
        tracked: bool,
    ) -> "Reservation | Waiter":
        """Reserve at least ``least`` now, or enqueue a request; see ``Scope.ask`` for details."""
        holder = HOLDER.get().path if tracked else None
        own = tuple(each for each in _own_reservations() if each.line is self)
        with self.lock:
            _require(accounts, least, own)
            claims = self._claims() if self._waiters and not own else {}
            if _fits(accounts, least, claims):
                return self._hold(accounts, _sized(accounts, least, wanted, claims), holder)
            waiter = Waiter(self, accounts, least, wanted, own, holder)
            self._waiters.append(waiter)
            self._refuse_deadlocked()
            return waiter

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
        accounts, least = waiter.accounts, waiter.least
        refused = _refusal(accounts, least, waiter.own)
        if refused is not None:
            return refused
        ahead = {} if waiter.own else claims
        if not _fits(accounts, least, ahead):
            return None
        charge = _sized(accounts, least, waiter.wanted, ahead)
        for account in accounts:
            account.hold(charge)
        return Reservation(self, accounts, charge)

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
        stuck = [waiter for waiter in self._waiters if waiter.own]
        while stuck:
            held = {reservation for waiter in stuck for reservation in waiter.own}
            refusals = ((w, _refusal(w.accounts, w.least, held)) for w in stuck)
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

    def _hold(self, accounts: Sequence[Account], charge: Charge, holder: object) -> Reservation:
        for account in accounts:
            account.hold(charge)
        return self.kept(Reservation(self, accounts, charge), holder)

    def kept(self, reservation: Reservation, holder: object) -> Reservation:
        """Record that the current task made a reservation, and if tracked, also which step did."""
        _OWN.set((*_own_reservations(), reservation))
        if holder is not None:
            self.tracked[reservation] = holder
        return reservation


def _own_reservations() -> tuple[Reservation, ...]:
    known = _OWN.get()
    return tuple(each for each in known if each.accounts) if known else known


def _require(
    accounts: Sequence[Account], charge: Charge, beside: Iterable[Reservation] | None
) -> None:
    refused = _refusal(accounts, charge, beside)
    if refused is not None:
        raise refused


def _refusal(
    accounts: Sequence[Account], charge: Charge, beside: Iterable[Reservation] | None
) -> BudgetExceededError | None:
    """Return the error if a charge does not fit next to the ``beside`` reservations, else None.

    ``beside=None`` counts all current holds.
    """
    for account in accounts:
        held = account.held if beside is None else _held_in(account, beside)
        refused = account.refusal(charge, held)
        if refused is not None:
            return refused
    return None


def _held_in(account: Account, reservations: Iterable[Reservation]) -> Mapping[Dimension, Amount]:
    return sum_of(each.charge for each in reservations if account in each.accounts)


def _fits(accounts: Sequence[Account], charge: Charge, claims: Claims) -> bool:
    for account in accounts:
        for dimension, asked in charge.items():
            room = account.room(dimension, claims.get((account, dimension), 0))
            if asked and room is not None and asked > room:
                return False
    return True


def _claim(claims: Claims, waiter: Waiter) -> None:
    for account in waiter.accounts:
        for dimension, asked in waiter.least.items():
            if dimension in account.limits:
                place = (account, dimension)
                claims[place] = claims.get(place, 0) + asked  # type: ignore[operator]


def _sized(
    accounts: Sequence[Account],
    least: Charge,
    wanted: Callable[[Room], Charge] | None,
    claims: Claims,
) -> Charge:
    """Return the charge to hold: the one that ``wanted`` returns if it fits, else ``least``."""
    if wanted is None:
        return least

    def room(dimension: Dimension) -> Amount | None:
        rooms = (
            account.room(dimension, claims.get((account, dimension), 0)) for account in accounts
        )
        return min((each for each in rooms if each is not None), default=None)

    charge = checked(wanted(room))
    return charge if _fits(accounts, charge, claims) else least
