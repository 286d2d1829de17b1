"""Calls that wait for the accounts above their runs, in one process."""

import asyncio
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import cast

import pytest

from caseworker.core.budget.accounts import TENANT, AccountLimit
from caseworker.core.budget.budget import Dimension
from caseworker.features.quotas.accounts import ASKING, FRESH_SECONDS, Accounts, AccountsOfRun
from caseworker.runs.journal.journal import RunJournal
from tests.support.seeded_loop import play


def limit(used: int, reserved: int, *, days: int = 1) -> AccountLimit:
    """Return a limit of 10 dollars whose period ends ``days`` from now."""
    return AccountLimit(
        account=TENANT,
        period="day",
        until=datetime.now(UTC).date() + timedelta(days=days),
        dimension=Dimension.COST_USD,
        used=Decimal(used),
        reserved=Decimal(reserved),
        limit=Decimal(10),
    )


def of_run(accounts: Accounts, *names: str) -> AccountsOfRun:
    """Return the accounts of a run that reserves in these, by default in that of its tenant."""
    return accounts.of_run("t", names or (TENANT,), cast("RunJournal", None))


class Caller:
    """A call that asks, is refused for a number of times, and notes when it asks."""

    def __init__(self, accounts: Accounts, name: str, requests: list[str], *of: str) -> None:
        self._accounts = of_run(accounts, *of)
        self._name = name
        self._requests = requests

    async def __call__(self, refusals: int) -> None:
        place = self._accounts.queue_position()
        try:
            await place.enter()
            for _ in range(refusals):
                self._requests.append(self._name)
                await place.wait()
            self._requests.append(f"{self._name} granted")
        finally:
            place.leave()


async def settle() -> None:
    """Let all tasks run until they wait, at the same time of the virtual clock."""
    for _ in range(20):
        await asyncio.sleep(0)


async def queued(
    accounts: Accounts, group: asyncio.TaskGroup, requests: list[str], *callers: tuple[str, int]
) -> list["asyncio.Task[None]"]:
    """Let callers with names and numbers of refusals arrive one after the other."""
    tasks = []
    for name, refusals in callers:
        tasks.append(group.create_task(Caller(accounts, name, requests)(refusals)))
        await settle()
    return tasks


@pytest.mark.req("cw/3.accounts")
def test_a_call_does_not_overtake_the_calls_that_wait() -> None:
    """A call that arrives behind a waiting one asks after a settlement, even if it is small."""
    requests: list[str] = []

    async def main() -> None:
        accounts = Accounts(asyncio.get_running_loop().time)
        async with asyncio.TaskGroup() as group:
            await queued(accounts, group, requests, ("large", 2), ("small", 0))
            assert requests == ["large"]
            accounts.changed("other")
            await settle()
            assert requests == ["large"]
            accounts.changed("t")
            await settle()
            assert sorted(requests) == ["large", "large", "small granted"]
            accounts.changed("t")

    play(main)
    assert requests[-1] == "large granted"


def test_only_the_first_waiting_calls_ask_again() -> None:
    """A settlement wakes few of a long queue; each call that leaves wakes the next."""
    requests: list[str] = []

    async def main() -> None:
        accounts = Accounts(asyncio.get_running_loop().time)
        async with asyncio.TaskGroup() as group:
            callers = [(f"{number:02}", 2 if number else 1) for number in range(40)]
            tasks = await queued(accounts, group, requests, *callers)
            assert requests == ["00"]
            requests.clear()
            accounts.changed("t")
            await settle()
            expected = {"00 granted", *(f"{number:02}" for number in range(1, 1 + ASKING))}
            assert set(requests) == expected
            for task in tasks:
                task.cancel()

    play(main)


def test_a_settlement_that_arrives_before_the_wait_is_not_missed() -> None:
    """It may be notified between the answer of the store and the wait."""

    async def main() -> float:
        loop = asyncio.get_running_loop()
        accounts = Accounts(loop.time)
        place = of_run(accounts).queue_position()
        await place.enter()
        accounts.changed("t")
        await place.wait()
        place.leave()
        return loop.time()

    assert play(main) == 0


def test_a_call_asks_again_if_the_notification_is_lost() -> None:
    """The database may be unavailable, or the previous release may have settled."""

    async def main() -> float:
        loop = asyncio.get_running_loop()
        place = of_run(Accounts(loop.time)).queue_position()
        await place.enter()
        await place.wait()
        place.leave()
        return loop.time()

    assert play(main) == pytest.approx(2.0)


def test_a_cancelled_wait_leaves_the_queue() -> None:
    """The next call asks instead."""
    requests: list[str] = []

    async def main() -> None:
        accounts = Accounts(asyncio.get_running_loop().time)
        first = asyncio.create_task(Caller(accounts, "first", requests)(9))
        await settle()
        second = asyncio.create_task(Caller(accounts, "second", requests)(0))
        await settle()
        first.cancel()
        await asyncio.wait((first, second))

    play(main)
    assert requests == ["first", "second granted"]


def test_the_free_amount_is_that_of_the_tightest_limit() -> None:
    """The amounts of an answer count for a while, or until a change is notified."""
    now = [0.0]
    accounts = Accounts(lambda: now[0])
    run = of_run(accounts)
    assert run.free_amounts() == {}

    run.learned([limit(3, 2), limit(4, 5)])
    assert run.free_amounts() == {Dimension.COST_USD: 1}
    now[0] += FRESH_SECONDS + 0.1
    assert run.free_amounts() == {}
    run.learned([limit(10, 0, days=0)])
    assert run.free_amounts() == {Dimension.COST_USD: 10}
    accounts.changed("t")
    assert run.free_amounts() == {}


@pytest.mark.req("cw/19.sessions")
def test_a_session_does_not_wait_for_the_calls_of_another_one() -> None:
    """Both share the account of their key; a change of it wakes both."""
    requests: list[str] = []
    names = [("key:a", f"session:a:{session}") for session in ("one", "two")]

    async def main() -> None:
        accounts = Accounts(asyncio.get_running_loop().time)
        callers = [
            Caller(accounts, name, requests, *of) for name, of in zip("12", names, strict=True)
        ]
        async with asyncio.TaskGroup() as group:
            for caller in callers:
                group.create_task(caller(1))
                await settle()
            assert requests == ["1", "2"]
            accounts.changed("t", "session:a:one")
            await settle()
            assert requests == ["1", "2", "1 granted"]
            accounts.changed("t", "key:a")

    play(main)
    assert requests[-1] == "2 granted"
