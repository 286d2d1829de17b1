"""Locks of persistent nodes: one holder, a bounded wait, and no leaks."""

import asyncio
from typing import Any

import pytest

from caseworker.engine.concurrency import DeadlockError, NodeLock
from tests.support.seeded_loop import now, play


async def hold(lock: NodeLock, seconds: float) -> float:
    async with lock.held():
        await asyncio.sleep(seconds)
        return now()


@pytest.mark.req("000/P3")
def test_one_holds_it_at_a_time() -> None:
    """Three tasks hold the lock one after the other."""

    async def main() -> list[float]:
        lock = NodeLock("n")
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(hold(lock, 1)) for _ in range(3)]
        assert not lock.locked
        return sorted(task.result() for task in tasks)

    assert play(main) == [1, 2, 3]


@pytest.mark.req("000/P4")
def test_a_lock_that_cannot_be_had_in_time_raises_and_stays_sound() -> None:
    """A wait that times out raises DeadlockError, and later tasks still acquire the lock."""

    async def main() -> tuple[float, bool]:
        lock = NodeLock("n", timeout_seconds=5)
        async with asyncio.TaskGroup() as group:
            group.create_task(hold(lock, 8))
            await asyncio.sleep(0.5)
            with pytest.raises(DeadlockError, match="'n' was not free within 5 seconds"):
                await hold(lock, 1)
            failed_at = now()
        await hold(lock, 1)
        return failed_at, lock.locked

    assert play(main) == (5.5, False)


@pytest.mark.req("000/P4")
def test_two_nodes_taken_in_opposite_orders_end_in_an_error_not_in_a_hang() -> None:
    """Of two tasks that lock in opposite orders, one times out and the other then finishes."""

    async def both(first: NodeLock, second: NodeLock) -> str:
        try:
            async with first.held():
                await asyncio.sleep(1)
                async with second.held():
                    return "done"
        except DeadlockError:
            return "gave up"

    async def main() -> Any:
        one = NodeLock("one", timeout_seconds=5)
        other = NodeLock("other", timeout_seconds=9)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(both(one, other)), group.create_task(both(other, one))]
        assert not one.locked
        assert not other.locked
        return [task.result() for task in tasks], now()

    assert play(main) == (["done", "gave up"], 6)


@pytest.mark.req("000/P4")
def test_work_that_holds_a_lock_does_not_wait_for_itself() -> None:
    """A task that acquires its own lock again fails at once instead of waiting for the timeout."""

    async def main() -> float:
        lock = NodeLock("n")
        async with lock.held():
            with pytest.raises(DeadlockError, match="waits for itself"):
                await hold(lock, 1)
        assert not lock.locked
        return now()

    assert play(main) == 0


@pytest.mark.req("000/P4")
@pytest.mark.parametrize("seed", range(50))
def test_a_cancel_at_any_moment_leaks_nothing(seed: int) -> None:
    """A cancel leaks no lock, whether a task waits for it, is just getting it or holds it."""

    async def main() -> bool:
        lock = NodeLock("n", timeout_seconds=seed % 5 + 1)
        tasks = [asyncio.create_task(hold(lock, 1)) for _ in range(6)]
        for index, task in enumerate(tasks):
            asyncio.get_running_loop().call_later((seed * 7 + index * 3) % 11 / 2, task.cancel)
        await asyncio.wait(tasks)
        for task in tasks:
            if not task.cancelled():
                task.exception()
        return lock.locked

    assert play(main, seed) is False


@pytest.mark.req("000/P3")
def test_a_lock_serves_one_event_loop_after_the_other() -> None:
    """A lock works in two event loops in turn, with waiters in both."""

    async def main() -> list[float]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(hold(lock, 1)) for _ in range(3)]
        return sorted(task.result() for task in tasks)

    lock = NodeLock("n")

    assert [play(main), play(main)] == [[1, 2, 3]] * 2
