"""Reservations, and the line of those who wait for one.

What does not fit only because of what others have reserved waits in the line of its tree of scopes
until enough of that was settled. It holds nothing meanwhile. Three rules decide, each time that
something is settled, in the order of arrival:

- Who does not fit even beside nothing but its own reservations is refused.
- Who fits beside what was used, what is held, and what those before it in the line *claim* gets its
  reservation. So nobody is overtaken in a dimension that it waits for, and who needs nothing of
  such a dimension is not kept waiting.
- Work that holds a reservation already, such as a call made inside another call, obeys no claims:
  others may wait for what it holds. If such work waits for one another, nothing would ever be
  settled: of those the last one that came is refused.

"Its own" are the reservations made in the same task and in the tasks around it, which follow from
the context variables of whoever asks.
"""

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar
from types import TracebackType
from typing import Any, Self

from caseworker.control.account import Account
from caseworker.control.budget import Amount, Dimension
from caseworker.control.usage import NOTHING, BudgetExceededError, Charge, checked, sum_of

Room = Callable[[Dimension], Amount | None]
"""Returns what can be reserved in a dimension; None is unlimited."""

Claims = dict[tuple[Account, Dimension], Amount]
"""What those before somebody in the line have asked for."""


class Holder:
    """Names who reserves now; what does so changes the name, and not the context variable."""

    __slots__ = ("path",)

    def __init__(self, path: object = None) -> None:
        self.path = path
        """Of a step, whose reservations end with it; None: nobody to track."""


HOLDER: ContextVar[Holder] = ContextVar("holder", default=Holder())  # noqa: B039 - never changed

_OWN: ContextVar[tuple["Reservation", ...]] = ContextVar("own_reservations", default=())


class Reservation:
    """What one piece of work may still spend; settle it exactly once.

    As a context manager it is given back at the end of the block, unless it was settled before.
    """

    __slots__ = ("_accounts", "_released", "charge", "line")

    def __init__(self, line: "WaitingLine", accounts: Sequence[Account], charge: Charge) -> None:
        self.line = line
        """The line of the scopes that it is held in."""
        self._accounts = accounts
        self._released = False
        self.charge = charge
        """What is held."""

    @property
    def accounts(self) -> Sequence[Account]:
        """Where it is held; empty once it was settled or released."""
        return () if self._released else self._accounts

    def settle(self, used: Charge = NOTHING) -> None:
        """Give the hold back and count what was really used; a second time changes nothing.

        Raises:
            ValueError: an amount is negative or not finite; the hold stays.
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
        """Give the hold back; what is settled later still counts as used."""
        with self.line.lock:
            if self._give_back():
                self.line.serve()

    def _give_back(self) -> bool:
        """Hold nothing more; False if that was so before."""
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
    """Somebody in the line."""

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
        """What became of the wait; None while it goes on."""
        self._wake: Callable[[], object] | None = None

    def on_end(self, wake: Callable[[], object]) -> None:
        """Have ``wake`` called once the wait is over, in whatever thread ends it; at once if so."""
        with self.line.lock:
            self._wake = wake
            if self.outcome is not None:
                wake()

    def end(self, outcome: Reservation | BudgetExceededError) -> None:
        """Say what became of the wait."""
        self.outcome = outcome
        if self._wake is not None:
            self._wake()

    def reservation(self) -> Reservation:
        """Return what was waited for, once the wait is over.

        Raises:
            BudgetExceededError: it does not fit, and will not.
        """
        if isinstance(self.outcome, Reservation):
            return self.line.kept(self.outcome, self.holder)
        raise self.outcome or RuntimeError("The wait is not over.")

    def leave(self) -> None:
        """Wait no more; what was got meanwhile goes back."""
        with self.line.lock:
            if isinstance(self.outcome, Reservation):
                self.outcome.release()
            self.line.remove(self)


class WaitingLine:
    """Everybody who waits for room in one tree of scopes, in the order of their arrival."""

    __slots__ = ("_waiters", "lock", "tracked")

    def __init__(self, lock: threading.RLock) -> None:
        self.lock = lock
        self.tracked: dict[Reservation, Any] = {}
        """The reservations that end with a step, by whoever made them."""
        self._waiters: list[Waiter] = []

    def __len__(self) -> int:
        return len(self._waiters)

    def reserve(self, accounts: Sequence[Account], charge: Charge) -> Reservation:
        """Hold a charge now, or raise BudgetExceededError; the line is passed by."""
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
        """Hold at least ``least`` now, or join the line; raises as ``Scope.ask`` does."""
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
        """Take somebody out of the line, who may have left it; the lock is held."""
        if waiter in self._waiters:
            self._waiters.remove(waiter)
            self.serve()

    def serve(self) -> None:
        """Give those who wait what fits now, and refuse what never will; the lock is held."""
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
        """Return what becomes of a wait now; None: it goes on."""
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
        """Refuse the last of those who hold something and wait for one another, if there are."""
        while (stuck := self._deadlocked()) is not None:
            waiter, refused = stuck
            self._waiters.remove(waiter)
            waiter.end(refused)
            self.serve()

    def _deadlocked(self) -> tuple[Waiter, BudgetExceededError] | None:
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
        """Remember a reservation as the caller's own, and as its holder's to be ended with it."""
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
    """Return why a charge does not fit if only ``beside`` is held; None: everything that is."""
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
    """Return what is held: ``least``, or as much as is wanted and fits."""
    if wanted is None:
        return least

    def room(dimension: Dimension) -> Amount | None:
        rooms = (
            account.room(dimension, claims.get((account, dimension), 0)) for account in accounts
        )
        return min((each for each in rooms if each is not None), default=None)

    charge = checked(wanted(room))
    return charge if _fits(accounts, charge, claims) else least
