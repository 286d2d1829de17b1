"""Calls reserve in the accounts above their run, or wait, or are refused."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import pytest

from caseworker.core.budget.accounts import TENANT, AccountLimit, Hold, HoldAnswer
from caseworker.core.budget.budget import Dimension
from caseworker.core.budget.ledger import FreeAmounts
from caseworker.core.budget.usage import BudgetExceededError, Charge
from caseworker.engine.call import Reply, Spent
from caseworker.engine.step_path import StepPath
from tests.support.limits import retry_policy
from tests.support.scripted_call import ScriptedCall
from tests.unit.engine.gateway import (
    ESTIMATE,
    REAL,
    Attempts,
    Gateway,
    answers,
    busy,
    gateway_after,
    must_not_be_made,
)


@dataclass
class OneAccount:
    """An account of ten dollars in memory, with one call after the other."""

    gateway: Gateway
    used: Decimal = Decimal(0)
    reserved: Decimal = Decimal(0)
    held: dict[Any, Decimal] = field(default_factory=dict)
    settled: list[tuple[int, Any]] = field(default_factory=list)
    at_wait: Callable[[], object] = lambda: None

    names = ("tenant",)

    def free_amounts(self) -> FreeAmounts:
        return {Dimension.COST_USD: 10 - self.used - self.reserved}

    def queue_position(self) -> "OneAccount":
        return self

    async def enter(self) -> None:
        self.gateway.events.append("enter")

    async def wait(self) -> None:
        self.gateway.events.append("wait")
        assert not self.gateway.scope.reserved(Dimension.COST_USD)
        await asyncio.sleep(1)
        self.at_wait()

    def leave(self) -> None:
        self.gateway.events.append("leave")

    async def barrier(self, hold: Hold) -> HoldAnswer:
        self.gateway.events.append("barrier")
        limit = AccountLimit(
            account=TENANT,
            period="day",
            until=datetime.now(UTC).date() + timedelta(days=1),
            dimension=Dimension.COST_USD,
            used=self.used,
            reserved=self.reserved,
            limit=Decimal(10),
        )
        granted = self.used + self.reserved + hold.cost_usd <= 10
        if granted:
            self.held[hold.key] = hold.cost_usd
            self.reserved += hold.cost_usd
        return HoldAnswer(granted, [limit])

    def settle(self, hold: Hold, charge: Charge) -> None:
        self.reserved -= self.held.pop(hold.key)
        self.used += Decimal(charge.get(Dimension.COST_USD, 0))
        self.settled.append((hold.attempt, charge.get(Dimension.COST_USD)))


def account_of(gateway: Gateway, **amounts: Any) -> OneAccount:
    """Put the calls of a gateway below an account."""
    account = OneAccount(gateway, **amounts)
    gateway.calls.accounts = account
    gateway.events.clear()
    return account


def test_a_call_reserves_at_the_barrier_and_settles_its_actual_cost() -> None:
    """The barrier of the journal is not passed twice."""

    async def story(gateway: Gateway) -> None:
        account = account_of(gateway)
        await gateway.perform(answers)
        assert account.settled == [(1, REAL.cost_usd)]
        assert account.used == REAL.cost_usd
        assert account.reserved == 0
        assert gateway.events.count("barrier") == 1
        order = ["enter", "reserve", "barrier", "leave", "settle"]
        assert [each for each in gateway.events if each in order] == order

    gateway_after(story)


def test_each_attempt_is_reserved_and_settled() -> None:
    """A failed attempt costs what its provider reported."""

    async def story(gateway: Gateway) -> None:
        account = account_of(gateway)
        await gateway.perform(Attempts(busy(spent=replace(REAL, cost_usd=Decimal("0.1")))))
        assert account.settled == [(1, Decimal("0.1")), (2, REAL.cost_usd)]

    gateway_after(story)


def test_a_lost_attempt_settles_its_estimate() -> None:
    """A cancelled call may have been answered."""

    async def story(gateway: Gateway) -> None:
        account = account_of(gateway)

        async def cancelled() -> Reply:
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            await gateway.perform(cancelled)
        assert account.settled == [(1, ESTIMATE.cost_usd)]

    gateway_after(story)


@pytest.mark.req("cw/3.accounts")
def test_a_call_that_waits_for_an_account_holds_nothing() -> None:
    """It is made once other calls have settled, and its wait is in the trace."""

    async def story(gateway: Gateway) -> None:
        account = account_of(gateway, reserved=Decimal("9.9"))

        def settled() -> None:
            account.reserved = Decimal(0)

        account.at_wait = settled
        await gateway.perform(answers)
        assert gateway.node()["metadata"]["waited_ms"] == 1000
        assert gateway.events.count("wait") == 1
        assert account.used == REAL.cost_usd

    gateway_after(story)


def test_a_call_that_waits_is_not_charged_if_its_worker_is_lost() -> None:
    """The journal had the call in flight; while it waits, it has not been made."""

    async def story(gateway: Gateway) -> None:
        account = account_of(gateway, reserved=Decimal("9.9"))

        def settled() -> None:
            assert gateway.entry().charge == {}
            assert gateway.entry().value is None
            account.reserved = Decimal(0)

        account.at_wait = settled
        await gateway.perform(answers)

    gateway_after(story)


def test_a_call_that_never_fits_is_refused_with_the_state_of_the_account() -> None:
    """Waiting would not help: even without reservations it exceeds the limit."""

    async def story(gateway: Gateway) -> None:
        account = account_of(gateway, used=Decimal("9.8"), reserved=Decimal("0.1"))
        with pytest.raises(BudgetExceededError) as refused:
            await gateway.perform(must_not_be_made)
        cause = refused.value.cause
        assert (cause.scope, cause.dimension) == ("quota of the tenant, day", Dimension.COST_USD)
        amounts = (cause.used, cause.reserved, cause.requested, cause.limit)
        assert amounts == (Decimal("9.8"), Decimal("0.1"), ESTIMATE.cost_usd, 10)
        assert cause.resets_at is not None
        assert cause.to_dict()["resets_at"].endswith("T00:00:00Z")
        assert gateway.node()["status"] == "halt"
        assert account.settled == []
        assert gateway.spent() == {}

    gateway_after(story)


@dataclass(kw_only=True, eq=False)
class Shrinking(ScriptedCall):
    """A call that lowers its maximum cost to the free amount, but not below ten cents."""

    asked: list[Decimal]

    def estimate(self, room: FreeAmounts) -> Spent:
        free = Decimal(room.get(Dimension.COST_USD, 1))
        cost = max(Decimal("0.1"), min(Decimal(1), free))
        self.asked.append(cost)
        return replace(self.cost, cost_usd=cost)


@pytest.mark.req("cw/3.accounts")
def test_a_call_shrinks_to_what_is_free_in_the_account() -> None:
    """It does not wait while a smaller answer fits, although the first estimate did not."""

    async def story(gateway: Gateway) -> None:
        account = account_of(gateway, reserved=Decimal("9.3"))
        known = [Decimal(1), Decimal("0.7"), Decimal("0.7")]
        account.free_amounts = lambda: {Dimension.COST_USD: known[min(len(asked) // 2, 2)]}  # type: ignore[method-assign]
        asked: list[Decimal] = []
        call = Shrinking(
            key=StepPath("step/llm"),
            kind="llm",
            name="plan",
            request_hash="h",
            cost=ESTIMATE,
            attempt=answers,
            retry=retry_policy(),
            asked=asked,
        )
        await gateway.calls.perform(call, parent=gateway.root, scope=gateway.scope)
        assert asked[-1] == Decimal("0.7")
        assert "wait" not in gateway.events

    gateway_after(story)
