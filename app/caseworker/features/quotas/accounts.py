"""The accounts above runs, as one process knows them: free amounts, and the calls that wait.

The store decides whether a call fits (:class:`caseworker.runs.ports.JournalStore`). A call that
does not fit waits here until a settlement is notified, by this or another process. Calls with the
same accounts wait in order of arrival, and only the first few of them ask the store again, so that
a long queue does not delay the writes of other tenants.

See docs/internals.md, "Accounts".
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final
from weakref import WeakValueDictionary

from caseworker.core.budget.accounts import AccountLimit, Hold, HoldAnswer
from caseworker.core.budget.ledger import FreeAmounts
from caseworker.core.budget.usage import Charge
from caseworker.engine.call_maximum import free_in
from caseworker.runs.journal.journal import RunJournal

ASKING: Final = 4
"""Maximum number of waiting calls with the same accounts that ask the store in this process."""

POLL_SECONDS: Final = 2.0
"""Seconds after which a waiting call asks again, in case a notification was lost."""

FRESH_SECONDS: Final = 1.0
"""Seconds for which an answer is taken into account; afterwards, other processes may have settled
calls."""


Names = tuple[str, ...]
"""Names of the accounts in which a run reserves."""


@dataclass(slots=True, weakref_slot=True, eq=False)
class _Group:
    """The accounts of some runs of a tenant: the last answer, and the calls that wait for them."""

    tenant: str
    names: Names
    limits: Sequence[AccountLimit] = ()
    answered_at: float = 0.0
    changes: int = 0
    """Number of settlements and new limits that were notified."""
    waiting: "dict[QueuePosition, asyncio.Future[None] | None]" = field(default_factory=dict)
    """Calls in order of arrival, each with the future that wakes it; None while it asks."""

    def wake(self) -> None:
        """Wake the first waiting calls."""
        for future in list(self.waiting.values())[:ASKING]:
            if future is not None and not future.done():
                future.set_result(None)


class QueuePosition:
    """The position of a call among the calls with its accounts that wait in this process."""

    def __init__(self, group: _Group) -> None:
        self._group = group
        self._seen = group.changes

    async def enter(self) -> None:
        """Wait while calls that arrived earlier wait."""
        if self._group.waiting:
            await self._sleep()
        self._seen = self._group.changes

    async def wait(self) -> None:
        """Wait until a change is notified that the last answer may not include."""
        group = self._group
        group.waiting.setdefault(self, None)
        if self._seen == group.changes:
            await self._sleep()
        self._seen = group.changes

    async def _sleep(self) -> None:
        waiting = self._group.waiting
        waiting[self] = future = asyncio.get_running_loop().create_future()
        try:
            while not future.done():
                asks = self in list(waiting)[:ASKING]
                await asyncio.wait((future,), timeout=POLL_SECONDS)
                if asks:
                    return
        finally:
            waiting[self] = None

    def leave(self) -> None:
        """Leave the queue, so that the next call asks."""
        if self in self._group.waiting:
            del self._group.waiting[self]
            self._group.wake()


class Accounts:
    """The accounts of all runs in one process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        # A group is needed for as long as a run of this process has its accounts.
        self._groups: WeakValueDictionary[tuple[str, Names], _Group] = WeakValueDictionary()

    def changed(self, tenant: str, account: str | None = None) -> None:
        """Discard the last answer about an account of a tenant, and wake the calls that wait.

        None changes all accounts of the tenant.
        """
        for group in list(self._groups.values()):
            if group.tenant == tenant and account in (None, *group.names):
                group.limits = ()
                group.changes += 1
                group.wake()

    def of_run(self, tenant: str, names: Names, journal: RunJournal) -> "AccountsOfRun":
        """Return the accounts with these names, in which the calls of a run reserve."""
        return AccountsOfRun(self._group(tenant, names), journal, self._clock)

    def _group(self, tenant: str, names: Names) -> _Group:
        if (group := self._groups.get((tenant, names))) is None:
            group = self._groups[tenant, names] = _Group(tenant, names)
        return group


@dataclass(frozen=True, slots=True)
class AccountsOfRun:
    """The accounts in which the calls of one run reserve."""

    group: _Group
    journal: RunJournal
    clock: Callable[[], float] = time.monotonic

    @property
    def names(self) -> Names:
        """Names of the accounts."""
        return self.group.names

    def free_amounts(self) -> FreeAmounts:
        """Return about how much is free in the accounts; a dimension without a limit is absent."""
        is_fresh = self.clock() - self.group.answered_at <= FRESH_SECONDS
        return free_in(self.group.limits if is_fresh else ())

    def queue_position(self) -> QueuePosition:
        """Return a new position behind all calls that wait for the accounts in this process."""
        return QueuePosition(self.group)

    async def barrier(self, hold: Hold) -> HoldAnswer:
        """Pass the journal's barrier and reserve ``hold``.

        Raises:
            Stop: the run was cancelled, or another worker owns it now.
        """
        answer = await self.journal.reserve(hold)
        limits = answer.limits
        if answer.granted:
            limits = [
                replace(limit, reserved=limit.reserved + hold.amount(limit.dimension))
                for limit in limits
            ]
        self.learned(limits)
        return answer

    def learned(self, limits: Sequence[AccountLimit]) -> None:
        """Store the limits of the accounts, as the store has just returned them."""
        self.group.limits = limits
        self.group.answered_at = self.clock()

    def settle(self, hold: Hold, charge: Charge) -> None:
        """Replace a hold by the actual charge; stored with the next changes of the journal."""
        self.journal.settle(hold, charge)
