"""The journal of a run reserves its calls in accounts, and settles them."""

import asyncio
from contextlib import suppress
from decimal import Decimal

import pytest

from caseworker.core.budget.accounts import Hold, HoldAnswer
from caseworker.core.budget.budget import Dimension
from caseworker.platform.errors import WriteFailedError
from caseworker.runs.journal.journal import LostRunError
from caseworker.runs.ports import Permission
from tests.support.runs import run_story
from tests.unit.runs.opened import YES, Open

HOLD = Hold(node_id="n000002", attempt=1, cost_usd=Decimal(1), tokens=10)
GRANTED, REFUSED = HoldAnswer(granted=True, limits=()), HoldAnswer(granted=False, limits=())


def answer(*holds: Hold, granted: bool = True) -> Permission:
    """Return the store's answer to a write with holds."""
    given = {hold.key: GRANTED if granted else REFUSED for hold in holds}
    return Permission(owned=True, cancel_request=None, holds=given)


def test_a_hold_is_written_by_the_barrier_of_its_call() -> None:
    """The next writes do not repeat it, and a refused one may be reserved again."""

    async def story() -> None:
        run = Open()
        run.store.answers = [answer(HOLD, granted=False), answer(HOLD), YES]
        assert await run.journal.reserve(HOLD) == REFUSED
        assert await run.journal.reserve(HOLD) == GRANTED
        await run.journal.barrier(external=True)
        assert [write.holds for write in run.store.writes] == [(HOLD,), (HOLD,), ()]

    run_story(story, after_seconds=10)


@pytest.mark.parametrize("loses", [True, False])
def test_a_call_whose_barrier_fails_takes_its_hold_back(loses: bool) -> None:
    """No later write reserves for a call that is not made."""

    async def story() -> None:
        run = Open()
        run.store.answers = [WriteFailedError(10) if loses else YES, YES, YES]
        if loses:
            with pytest.raises(WriteFailedError):
                await run.journal.reserve(HOLD)
        else:
            call = asyncio.create_task(run.journal.reserve(HOLD))
            await asyncio.sleep(run.store.seconds / 2)
            call.cancel()
            await asyncio.wait({call})
            await asyncio.sleep(run.store.seconds)
        before = len(run.store.writes)
        run.begin("next")
        await run.journal.barrier(external=True)
        assert [write.holds for write in run.store.writes[before:]] == [()]

    run_story(story, after_seconds=10)


def test_parallel_calls_share_a_write_and_get_their_own_answers() -> None:
    """A call that arrives during a write is part of the next one."""

    async def story() -> None:
        run = Open()
        other = Hold(node_id="n000003", attempt=1, cost_usd=Decimal(2), tokens=10)
        third = Hold(node_id="n000004", attempt=1, cost_usd=Decimal(3), tokens=10)
        mixed = {other.key: REFUSED, third.key: GRANTED}
        run.store.answers = [answer(HOLD), Permission(True, None, holds=mixed)]
        async with asyncio.TaskGroup() as group:
            first = group.create_task(run.journal.reserve(HOLD))
            await asyncio.sleep(run.store.seconds / 2)  # the first write is in flight
            rest = [group.create_task(run.journal.reserve(each)) for each in (other, third)]
        assert first.result() == GRANTED
        assert [each.result() for each in rest] == [REFUSED, GRANTED]
        assert [len(write.holds) for write in run.store.writes] == [1, 2]

    run_story(story, after_seconds=10)


@pytest.mark.req("cw/3.accounts")
def test_a_settlement_is_written_until_it_is_stored() -> None:
    """It is part of the write that stores the result, and of the end of the run if that fails."""

    async def story() -> None:
        run = Open()
        run.store.answers = [answer(HOLD), WriteFailedError(10), YES]
        node = run.begin("call")
        await run.journal.reserve(HOLD)
        run.journal.settle(HOLD, {Dimension.COST_USD: Decimal("0.25"), Dimension.TOKENS: 7})
        run.end(node, "call")
        with suppress(WriteFailedError):
            await run.journal.barrier(external=True)
        (settled,) = run.journal.settled
        assert (settled.cost_usd, settled.tokens) == (Decimal("0.25"), 7)
        await run.journal.barrier(external=True)
        assert run.journal.settled == ()
        assert [write.settled for write in run.store.writes] == [(), (settled,), (settled,)]
        assert [record.node["status"] for record in run.store.writes[-1].calls][-1] == "success"

    run_story(story, after_seconds=10)


def test_a_closed_journal_reserves_nothing() -> None:
    """The call of abandoned work is not made."""

    async def story() -> None:
        run = Open()
        run.journal.close()
        with pytest.raises(LostRunError):
            await run.journal.reserve(HOLD)
        assert all(write.holds == () for write in run.store.writes)

    run_story(story, after_seconds=10)
