"""The accounts above runs, as one process knows them: free amounts, and the calls that wait.

The store decides whether a call fits (:class:`caseworker.runs.ports.JournalStore`). A call that
does not fit waits here until a settlement is notified, by this or another process. Calls of a
tenant wait in order of arrival, and only the first few of them ask the store again, so that a long
queue does not delay the writes of other tenants.

See docs/internals.md, "Accounts".
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Final

from caseworker.core.budget.accounts import AccountLimit, Hold, HoldAnswer
from caseworker.core.budget.budget import Dimension
from caseworker.core.budget.ledger import FreeAmounts
from caseworker.core.budget.usage import Charge
from caseworker.runs.journal.journal import RunJournal

ASKING: Final = 4
"""Maximum number of waiting calls of a tenant that ask the store in this process."""

POLL_SECONDS: Final = 2.0
"""Seconds after which a waiting call asks again, in case a notification was lost."""

FRESH_SECONDS: Final = 1.0
"""Seconds for which an answer is taken into account; afterwards, other processes may have settled
calls."""


@dataclass(slots=True)
class _Tenant:
    """The last answer about the accounts of a tenant, and the calls that wait for them."""

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
    """The position of a call among the calls of its tenant that wait in this process."""

    def __init__(self, tenant: _Tenant) -> None:
        self._tenant = tenant
        self._seen = tenant.changes

    async def enter(self) -> None:
        """Wait while calls that arrived earlier wait."""
        if self._tenant.waiting:
            await self._sleep()
        self._seen = self._tenant.changes

    async def wait(self) -> None:
        """Wait until a change is notified that the last answer may not include."""
        tenant = self._tenant
        tenant.waiting.setdefault(self, None)
        if self._seen == tenant.changes:
            await self._sleep()
        self._seen = tenant.changes

    async def _sleep(self) -> None:
        waiting = self._tenant.waiting
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
        if self in self._tenant.waiting:
            del self._tenant.waiting[self]
            self._tenant.wake()


class Accounts:
    """The accounts of all tenants in one process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._tenants: defaultdict[str, _Tenant] = defaultdict(_Tenant)

    def changed(self, tenant: str) -> None:
        """Discard the last answer about the accounts of a tenant, and wake the calls that wait."""
        if tenant in self._tenants:
            self._tenants[tenant].limits = ()
            self._tenants[tenant].changes += 1
            self._tenants[tenant].wake()

    def of_run(self, tenant: str, journal: RunJournal) -> "AccountsOfRun":
        """Return the accounts in which the calls of a run of ``tenant`` reserve."""
        return AccountsOfRun(tenant, self, journal)

    def queue_position(self, tenant: str) -> QueuePosition:
        """Return a new position behind all waiting calls of a tenant."""
        return QueuePosition(self._tenants[tenant])

    def learned(self, tenant: str, limits: Sequence[AccountLimit]) -> None:
        """Store the limits of a tenant's accounts, as the store has just returned them."""
        self._tenants[tenant].limits = limits
        self._tenants[tenant].answered_at = self._clock()

    def free_amounts(self, tenant: str) -> FreeAmounts:
        """Return about how much is free in the accounts of a tenant, by dimension, if known."""
        state = self._tenants[tenant]
        amounts: dict[Dimension, Decimal] = {}
        if self._clock() - state.answered_at > FRESH_SECONDS:
            return amounts
        for limit in state.limits:
            is_over = limit.resets_at <= datetime.now(UTC)
            left = limit.limit - (0 if is_over else limit.used + limit.reserved)
            amounts[limit.dimension] = min(left, amounts.get(limit.dimension, left))
        return amounts


@dataclass(frozen=True, slots=True)
class AccountsOfRun:
    """The accounts in which the calls of one run reserve."""

    tenant: str
    accounts: Accounts
    journal: RunJournal

    def free_amounts(self) -> FreeAmounts:
        """Return about how much is free in the accounts; a dimension without a limit is absent."""
        return self.accounts.free_amounts(self.tenant)

    def queue_position(self) -> QueuePosition:
        """Return a new position behind all calls that wait for the accounts in this process."""
        return self.accounts.queue_position(self.tenant)

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
        self.accounts.learned(self.tenant, limits)
        return answer

    def settle(self, hold: Hold, charge: Charge) -> None:
        """Replace a hold by the actual charge; stored with the next changes of the journal."""
        self.journal.settle(hold, charge)
