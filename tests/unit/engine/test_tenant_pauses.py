"""A tenant whose steps never wait pauses between them while another tenant is active."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from caseworker.engine.concurrency import BURST_STEPS, PAUSE_SECONDS, LoopTurns
from caseworker.platform.fair_slots import TENANT
from tests.support.virtual_clock import VirtualClockLoop

STEP_SECONDS = 0.0004
MANY = 1000


def _played(play: Callable[["_Process"], Awaitable[float]]) -> float:
    with asyncio.Runner(loop_factory=VirtualClockLoop) as runner:
        loop = runner.get_loop()
        assert isinstance(loop, VirtualClockLoop)

        async def start() -> float:
            return await play(_Process(loop))

        return runner.run(start())


class _Process:
    """Steps that each take the same time on a virtual clock."""

    def __init__(self, loop: VirtualClockLoop) -> None:
        self.loop = loop
        self.turns = LoopTurns()

    async def steps(self, tenant: str, number: int, *, at_once: int = 1) -> float:
        """Execute steps of one run, some at once; return the seconds that they took."""
        TENANT.set(tenant)
        began_at, run = self.loop.now, object()

        async def work() -> None:
            for _ in range(number // at_once):
                await self.turns.pause(run)
                self.loop.now += STEP_SECONDS

        async with asyncio.TaskGroup() as working:
            for _ in range(at_once):
                working.create_task(work())
        return self.loop.now - began_at

    async def beside(self, tenant: str, *, every: float) -> None:
        """Execute runs with one step each, until cancelled."""
        while True:
            await asyncio.create_task(self.steps(tenant, 1))
            await asyncio.sleep(every)


@pytest.mark.parametrize("at_once", [1, 10, 50])
def test_a_tenant_alone_does_not_pause(at_once: int) -> None:
    """The steps follow each other without pauses."""
    seconds = _played(lambda process: process.steps("mallory", MANY, at_once=at_once))

    assert seconds == pytest.approx(MANY * STEP_SECONDS)


@pytest.mark.parametrize("at_once", [1, 10, 50])
def test_many_steps_take_at_most_about_half_of_the_loop_beside_another_tenant(at_once: int) -> None:
    """They continue between the pauses."""

    async def play(process: _Process) -> float:
        other = asyncio.create_task(process.beside("acme", every=0.02))
        await asyncio.sleep(0)
        seconds = await process.steps("mallory", MANY, at_once=at_once)
        other.cancel()
        return seconds

    paced = (MANY - BURST_STEPS) * STEP_SECONDS
    assert 1.5 * paced < _played(play) < 5 * paced


def test_a_step_of_another_tenant_does_not_wait_for_the_pauses() -> None:
    """Two tenants pause, a third one does not."""

    async def play(process: _Process) -> float:
        others = [
            asyncio.create_task(process.steps(tenant, MANY, at_once=20))
            for tenant in ("mallory", "mallet")
        ]
        longest = 0.0
        while not all(each.done() for each in others):
            longest = max(longest, await asyncio.create_task(process.steps("acme", 1)))
            await asyncio.sleep(0.01)
        return longest

    assert _played(play) < 10 * STEP_SECONDS


@pytest.mark.parametrize("at_once", [1, 64])
def test_a_burst_of_steps_has_no_pauses(at_once: int) -> None:
    """An example is one turn of an agent with many tool calls."""

    async def play(process: _Process) -> float:
        await process.steps("acme", 1)
        return await asyncio.create_task(process.steps("mallory", 64, at_once=at_once))

    assert _played(play) < 64 * STEP_SECONDS + PAUSE_SECONDS
