"""The seeded loop: order by seed, virtual time, and interrupts at every step."""

import asyncio
from dataclasses import dataclass, field

import pytest

from tests.support.seeded_loop import Deadlock, EndlessStory, interrupted_everywhere, run


async def _race() -> list[str]:
    order: list[str] = []

    async def runner(name: str) -> None:
        for lap in range(3):
            order.append(f"{name}{lap}")
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as group:
        for name in "abc":
            group.create_task(runner(name))
    return order


def test_the_same_seed_tells_the_same_story() -> None:
    """Result, steps and digest repeat, also when a set decides the order of cancellations."""

    async def quarrel() -> list[str]:
        ends: list[str] = []

        async def waiter(name: str) -> None:
            try:
                await asyncio.sleep(10)
            finally:
                ends.append(name)

        async def failing() -> None:
            await asyncio.sleep(1)
            raise ValueError

        try:
            async with asyncio.TaskGroup() as group:
                for name in "abcdefgh":
                    group.create_task(waiter(name))
                group.create_task(failing())
        except* ValueError:
            assert len(ends) == 8
        return ends + await _race()

    for seed in range(20):
        assert run(quarrel, seed) == run(quarrel, seed)


def test_other_seeds_tell_other_stories() -> None:
    """Fifty seeds find many orders of the same race."""
    stories = [run(_race, seed) for seed in range(50)]

    assert len({tuple(story.result) for story in stories}) > 10
    assert len({story.digest for story in stories}) > 10


def test_a_deadlock_names_the_seed_and_the_places() -> None:
    """Two tasks that wait for each other are reported instead of hanging the test."""

    async def embrace() -> None:
        left, right = asyncio.Event(), asyncio.Event()

        async def hold(mine: asyncio.Event, other: asyncio.Event) -> None:
            await other.wait()
            mine.set()

        async with asyncio.TaskGroup() as group:
            group.create_task(hold(left, right))
            group.create_task(hold(right, left))

    with pytest.raises(Deadlock, match=r"hold waits at .*test_seeded_loop\.py:\d+") as caught:
        run(embrace, 5)
    assert "seed 5" in caught.value.__notes__[0]


def test_an_endless_story_is_ended() -> None:
    """A task that loops forever does not hang the test."""

    async def spin() -> None:
        for _ in iter(int, 1):
            await asyncio.sleep(0)

    with pytest.raises(EndlessStory):
        run(spin, 1, max_steps=500)


def test_tasks_that_outlive_the_story_are_named() -> None:
    """A leaked task is reported."""

    async def forgotten() -> None:
        await asyncio.sleep(99)

    async def leaky() -> None:
        task = asyncio.create_task(forgotten())
        await asyncio.sleep(1)
        assert not task.done()

    (leak,) = run(leaky, 2).leftover

    assert leak.endswith("forgotten")


@dataclass
class _Transfer:
    """A transfer between two accounts; `careful` survives a cancel in between."""

    careful: bool
    accounts: dict[str, int] = field(default_factory=lambda: {"a": 10, "b": 0})
    worker: asyncio.Task[None] | None = None

    async def play(self) -> int:
        self.worker = asyncio.create_task(self._move())
        await asyncio.wait({self.worker})
        return sum(self.accounts.values())

    def interrupt(self) -> None:
        if self.worker is not None:
            self.worker.cancel()

    async def _move(self) -> None:
        self.accounts["a"] -= 10
        try:
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            if self.careful:
                self.accounts["a"] += 10
            raise
        self.accounts["b"] += 10


def test_an_interrupt_at_every_step_finds_the_lost_money() -> None:
    """One of the interrupts hits the moment at which a cancellation loses money."""
    careless = [story.result for _, story in interrupted_everywhere(lambda: _Transfer(False), 1)]
    careful = [story.result for _, story in interrupted_everywhere(lambda: _Transfer(True), 1)]

    assert careless[0] == 10
    assert 0 in careless
    assert set(careful) == {10}
    assert len(careful) > 3
