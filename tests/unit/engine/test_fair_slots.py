"""Tenants share the slots: each has a quota, and the tenant with the fewest slots is next."""

import asyncio

from caseworker.platform.fair_slots import FairSlots, queue_of, share_of


class Waiters:
    """Acquires slots in tasks and records which tenant got one."""

    def __init__(self, size: int) -> None:
        self.slots = FairSlots(size)
        self.served: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def ask(self, *tenants: str) -> None:
        async def take(tenant: str) -> None:
            await self.slots.acquire(tenant)
            self.served.append(tenant)

        self.tasks += [asyncio.create_task(take(tenant)) for tenant in tenants]
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    async def release(self, tenant: str) -> None:
        self.slots.release(tenant)
        await asyncio.sleep(0)


def test_a_share_is_nine_tenths_rounded_down_and_at_least_one() -> None:
    """A tenant's share of ten slots is nine, of four three, and of one that one."""
    assert [share_of(size) for size in (1, 2, 4, 10, 2000)] == [1, 1, 3, 9, 1800]


async def test_a_tenant_gets_no_more_than_its_share() -> None:
    """The last slot stays free for another tenant."""
    waiters = Waiters(3)

    await waiters.ask(*"aaa", "b")

    assert waiters.served == ["a", "a", "b"]


async def test_a_freed_slot_goes_to_the_tenant_that_holds_the_fewest() -> None:
    """A freed slot goes to the tenant with the fewest, even if another one has waited longer."""
    waiters = Waiters(4)
    await waiters.ask(*"aaa", *"b", *"aa", *"b", *"c")

    await waiters.release("a")

    assert waiters.served == ["a", "a", "a", "b", "c"]


async def test_tenants_alternate_where_there_is_a_single_slot() -> None:
    """A tenant with many waiters does not keep a single slot."""
    waiters = Waiters(1)
    await waiters.ask(*"aaa", *"bb")

    for served in "abab":
        await waiters.release(served)

    assert waiters.served == list("ababa")


async def test_a_cancelled_waiter_leaves_nothing_behind() -> None:
    """A cancelled waiter keeps neither a slot nor its position in the queue."""
    waiters = Waiters(1)
    await waiters.ask("a", "b", "b")
    waiters.tasks[1].cancel()
    await asyncio.sleep(0)

    await waiters.release("a")
    await waiters.release("b")
    await waiters.ask("c")

    assert waiters.served == ["a", "b", "c"]


async def test_a_tenant_at_its_share_is_refused_at_once() -> None:
    """A tenant at its share is refused at once: only its own release could free a slot."""
    slots = FairSlots(10)

    taken = [await slots.acquire_within(3600, "a") for _ in range(10)]

    assert taken == [True] * 9 + [False]
    assert await slots.acquire_within(3600, "b")


async def test_a_request_beyond_the_queue_is_refused_at_once() -> None:
    """The queue is a tenth as long as the pool, and a tenant may fill nine tenths of it."""
    slots = FairSlots(20)
    for tenant in "ab":
        for _ in range(10):
            await slots.acquire_within(3600, tenant)
    waiting = [asyncio.create_task(slots.acquire_within(3600, tenant)) for tenant in "cd"]
    await asyncio.sleep(0)

    assert queue_of(20) == 2
    assert not await slots.acquire_within(3600, "e")
    slots.release("a")
    slots.release("b")
    assert [await each for each in waiting] == [True, True]


async def test_a_request_that_waits_too_long_is_refused() -> None:
    """A request that times out leaves the queue."""
    slots = FairSlots(1)
    await slots.acquire_within(3600, "a")

    assert not await slots.acquire_within(0, "b")
    slots.release("a")
    assert await slots.acquire_within(3600, "c")


async def test_a_slot_that_is_freed_as_its_waiter_is_cancelled_goes_to_the_next() -> None:
    """A slot freed before its cancelled waiter has run goes to the next waiter in the queue."""
    waiters = Waiters(1)
    await waiters.ask("a", "b", "c")

    waiters.tasks[1].cancel()
    await waiters.release("a")
    await asyncio.wait(waiters.tasks)

    assert waiters.served == ["a", "c"]
